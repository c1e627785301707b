"""The engine without a framework: three cache tiers, warming, forgetting, and a restart.

    python examples/engine_alone.py            # a minute on two cores; nothing is downloaded

You find the documents and write the prompt. The engine reuses what it has computed for a document when
the document comes back in another prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import sample

from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions

SHORT = SamplingOptions(max_tokens=8)  # only the times before the answer are shown

ASKED = {
    "with": "What does the with statement do?",
    "function": "When are default parameter values evaluated?",
    "try": "When is a finally clause executed?",
    "import": "How does the import statement find a module?",
}


def main() -> None:
    with TemporaryDirectory() as folder:
        # In a real program, use a folder that stays. Several engines may share it.
        config = EngineConfig(
            model=sample.model(),
            device_cache="96MiB",  # holds two or three of these prompts; the rest moves to the host
            host_cache="192MiB",
            disk_cache="2GiB",
            disk_cache_dir=Path(folder),
            vllm_args={"dtype": "float32", "max_model_len": 2048},
        )
        sample.passages()  # made now, so that the first question need not wait for it
        print("A new engine, the disk cache empty")
        with RAGCacheEngine(config) as engine:
            ask_all(engine)
            print("\nThe same questions again: what the device evicted comes from the host")
            ask_all(engine)

            warmed = engine.warm([documents_of("with")[::-1]], template=sample.PROMPT)
            print(f"\nWarmed another order of documents: {warmed.computed_tokens} tokens computed")

            first = documents_of("try")[0]
            engine.forget([first.id])
            print(f"Forgot {first.id}, in every tier:")
            show("try", ask(engine, "try"))

            tiers = engine.stats().tiers
            print(
                f"\nStats: {engine.stats().hit_ratio():.0%} of all prompt tokens were cached; "
                f"{tiers.written_bytes >> 20} MiB written to disk"
            )
        print("\nThe engine is closed. A new one, on the same folder:")
        with RAGCacheEngine(config) as engine:
            ask_all(engine)


def ask_all(engine: RAGCacheEngine) -> None:
    print(f"  {'documents':10} {'TTFT s':>7} {'prompt':>7} {'device':>7} {'host':>7} {'disk':>7}")
    for topic in ASKED:
        show(topic, ask(engine, topic))


def ask(engine: RAGCacheEngine, topic: str) -> Answer:
    documents = documents_of(topic)
    return engine.generate(prompt_of(ASKED[topic], documents), documents, SHORT)


def documents_of(topic: str) -> list[Document]:
    """Return at most two. In a real program, a search finds them."""
    found = sample.passages().items()
    return [Document(name, text) for name, text in found if name.startswith(f"{topic}:")][:2]


def prompt_of(question: str, documents: Sequence[Document]) -> str:
    context = "\n\n".join(document.text for document in documents)
    return sample.PROMPT.format(context=context, question=question)


def show(topic: str, answer: Answer) -> None:
    usage, cached = answer.usage, answer.usage.cached
    print(
        f"  {topic:10} {usage.ttft_s:7.2f} {usage.prompt_tokens:7,} "
        f"{cached.device:7,} {cached.host:7,} {cached.disk:7,}"
    )


if __name__ == "__main__":  # vLLM starts processes that import this script again
    main()
