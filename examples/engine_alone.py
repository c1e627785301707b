"""The engine without a framework: three tiers, warming, forgetting, and a restart that loses nothing.

    python examples/engine_alone.py            # a minute on two cores; nothing is downloaded

You find the documents and write the prompt; the engine knows each document again in the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import sample

from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions

SHORT = SamplingOptions(max_tokens=24)

DOCUMENTS = [Document(name, text) for name, text in sample.passages().items()]
BY_TOPIC = {
    topic: [document for document in DOCUMENTS if document.id.startswith(f"{topic}:")][:3]
    for topic in ("with", "function", "try", "import")
}
ASKED = {
    "with": "What does the with statement do?",
    "function": "When are default parameter values evaluated?",
    "try": "When is a finally clause executed?",
    "import": "How does the import statement find a module?",
}


def main() -> None:
    with TemporaryDirectory() as folder:
        # In earnest: a folder that stays. Several engines may share it.
        config = EngineConfig(
            model=sample.model(),
            device_cache="64MiB",  # holds two or three of these prompts; the rest moves down
            host_cache="128MiB",
            disk_cache="2GiB",
            disk_cache_dir=Path(folder),
            vllm_args={"max_model_len": 2048},
        )
        print("A new engine, the disk cache empty")
        with RAGCacheEngine(config) as engine:
            ask_all(engine)
            print("\nThe same questions again: what the device gave up comes from the host")
            ask_all(engine)

            warmed = engine.warm([BY_TOPIC["with"][:2][::-1]], template=sample.PROMPT)
            print(
                f"\nWarmed another order of two documents: {warmed.computed_tokens} tokens computed"
            )

            engine.forget([BY_TOPIC["try"][0].id])
            print(f"Forgot {BY_TOPIC['try'][0].id}, in every tier:")
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
    documents = BY_TOPIC[topic]
    return engine.generate(prompt_of(ASKED[topic], documents), documents, SHORT)


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
