"""A web app whose model runs in a server: FastAPI, a LangChain chain, answers that stream.

    ragcache serve -- --port 8000 --dtype float32 --max-model-len 4096      # in another terminal
    python examples/app_on_server.py http://localhost:8000 --port 8001
    curl -N "http://localhost:8001/stream?question=What+does+the+with+statement+do%3F"

The app loads no language model and needs no vLLM, so it starts in seconds, and any number of its
processes share the server's tensors. A fleet (`ragcache serve --replicas 2 -- ...`) looks like one server
to it. If the server wants an API key, put it into the environment variable RAGCACHE_API_KEY.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sample
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

from ragcache_engine import RAGCacheEngine, ServerBusy, ServerUnreachable
from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever


class MiniLM(Embeddings):
    """The demo's embedding model. Use your own here, such as HuggingFaceEmbeddings."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return sample.vectors(texts)

    def embed_query(self, text: str) -> list[float]:
        return sample.vectors([text])[0]


def make_app(url: str) -> FastAPI:
    """Make the app. url: the server's address."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # with the model in this process: RAGCacheEngine.acreate(EngineConfig(model=...))
        async with await RAGCacheEngine.aconnect(url) as engine:
            app.state.engine, app.state.chain = engine, make_chain(engine)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/stream")
    async def stream(question: str) -> StreamingResponse:
        pieces = app.state.chain.astream(question)
        # What goes wrong before the first piece can still become a status of its own.
        first = await anext(pieces, "")

        async def answer() -> AsyncIterator[str]:
            # If the reader leaves, Starlette cancels the chain, and the server ends the request.
            yield first
            async for piece in pieces:
                yield piece

        return StreamingResponse(answer(), media_type="text/plain")

    @app.get("/stats")
    async def stats() -> dict[str, Any]:
        counters = app.state.engine.stats()
        return {
            "finished": counters.finished,
            "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached.total,
        }

    @app.exception_handler(ServerUnreachable)
    @app.exception_handler(ServerBusy)
    async def come_back_later(request: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=503)

    return app


def make_chain(engine: RAGCacheEngine) -> Runnable[str, str]:
    """Make the usual chain over Python's help topics."""
    passages = sample.passages()
    store = FaissVectorStore.from_documents(
        [Document(text, id=name) for name, text in passages.items()], MiniLM()
    )
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=32)
    inputs = {"context": retriever | join_texts, "question": RunnablePassthrough()}
    return inputs | PromptTemplate.from_template(sample.PROMPT) | llm | StrOutputParser()


def join_texts(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("server", help="such as http://localhost:8000")
    parser.add_argument("--port", type=int, default=8001)
    given = parser.parse_args()
    uvicorn.run(make_app(given.server), port=given.port, log_level="warning")
