"""The frameworks' embedding classes around a plain function from a text to its vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Embed = Callable[[str], list[float]]


def langchain_embeddings(embed: Embed) -> Any:
    from langchain_core.embeddings import Embeddings

    class Made(Embeddings):
        def embed_query(self, text: str) -> list[float]:
            return embed(text)

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [embed(text) for text in texts]

    return Made()


def llamaindex_embedding(embed: Embed) -> Any:
    from llama_index.core.base.embeddings.base import BaseEmbedding

    class Made(BaseEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return embed(text)

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return embed(query)

    return Made()
