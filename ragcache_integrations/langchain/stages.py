"""What a retriever's `stream_stages` yields."""

from __future__ import annotations

from typing import NamedTuple

from langchain_core.documents import Document


class DocumentStage(NamedTuple):
    """What a search would return if it ended now.

    documents: nearest first. fraction_done: the share of the search that is done, in (0, 1].
    final: whether these are what `invoke` returns.
    """

    documents: list[Document]
    fraction_done: float
    final: bool
