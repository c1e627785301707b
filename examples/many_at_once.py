"""Many questions at once in one event loop: streaming, cancelling, and tenants that share nothing.

    python examples/many_at_once.py            # half a minute on two cores; nothing is downloaded

This is the core of a server of your own: one engine, and a coroutine for each reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import sample

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions, Usage

TENANTS = ("alice", "bob")
ASKED = {
    "with": ("What does the with statement do?", "Which methods does the with statement call?"),
    "function": ("When are default values evaluated?", "What does a decorator do?"),
    "try": ("When is a finally clause executed?", "What does the else clause of try do?"),
}


@dataclass(frozen=True, slots=True)
class Read:
    """What one reader got. usage: None if the reader left before the end."""

    tenant: str
    question: str
    pieces: int
    usage: Usage | None


async def main() -> None:
    sample.passages()  # made now, so that no reader waits for it
    config = EngineConfig(
        model=sample.model(), vllm_args={"dtype": "float32", "max_model_len": 2048}
    )
    with RAGCacheEngine(config) as engine:
        print("The first question on each set of documents, for each tenant, all at once")
        await ask_all(engine, turn=0)
        print("\nOther questions on the same documents")
        await ask_all(engine, turn=1)

        print("\nA reader who leaves after five pieces of an endless answer")
        left = await read(engine, "alice", "with", "Tell me everything.", leave_after=5)
        while (stats := engine.stats()).running:  # the step that is running now is its last one
            await asyncio.sleep(0.01)
        print(
            f"  read {left.pieces} pieces; {stats.cancelled} request cancelled, {stats.running} running"
        )


async def ask_all(engine: RAGCacheEngine, turn: int) -> None:
    """Ask in one coroutine for each tenant and question. The engine batches them."""
    reads = await asyncio.gather(
        *(
            read(engine, tenant, topic, questions[turn])
            for tenant in TENANTS
            for topic, questions in ASKED.items()
        )
    )
    print(f"  {'tenant':8} {'TTFT s':>7} {'pieces':>7} {'prompt':>7} {'cached':>7}  question")
    for one in reads:
        assert one.usage
        print(
            f"  {one.tenant:8} {one.usage.ttft_s:7.2f} {one.pieces:7} {one.usage.prompt_tokens:7,} "
            f"{one.usage.cached.total:7,}  {one.question}"
        )


async def read(
    engine: RAGCacheEngine, tenant: str, topic: str, question: str, leave_after: int | None = None
) -> Read:
    """Stream one answer to one reader. Tenants share no tensors, not even for the same documents."""
    documents = documents_of(topic)
    options = SamplingOptions(
        max_tokens=24 if leave_after is None else None, ignore_eos=leave_after is not None
    )
    pieces = 0
    stream = engine.astream(prompt_of(question, documents), documents, options, tenant=tenant)
    async with aclosing(stream):  # leaving the block cancels what still runs
        async for piece in stream:
            pieces += 1
            if piece.usage or pieces == leave_after:
                return Read(tenant, question, pieces, piece.usage)
    raise AssertionError("a stream ends with its usage")


def documents_of(topic: str) -> list[Document]:
    """Return at most two. In a real program, a search finds them, off the event loop."""
    found = sample.passages().items()
    return [Document(name, text) for name, text in found if name.startswith(f"{topic}:")][:2]


def prompt_of(question: str, documents: Sequence[Document]) -> str:
    context = "\n\n".join(document.text for document in documents)
    return sample.PROMPT.format(context=context, question=question)


if __name__ == "__main__":  # vLLM starts processes that import this script again
    asyncio.run(main())
