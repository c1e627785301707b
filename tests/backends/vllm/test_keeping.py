"""Documents kept from eviction on real vLLM: through other traffic, a killed model, a new process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragcache_engine import (
    Document,
    EngineConfig,
    KeptDocuments,
    RAGCacheEngine,
    SamplingOptions,
    cache_point,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TEMPLATE = "Use the report.\n\n{context}\n\nQuestion: {question}\nAnswer:"


def report(name: str, lines: int = 30) -> Document:
    return Document(
        name, " ".join(f"Item {line} of {name} weighs {line} kg." for line in range(lines))
    )


HANDBOOK = report("handbook")


@contextmanager
def engine_with(model: str, folder: Path, **settings: Any) -> Iterator[RAGCacheEngine]:
    """Device, host and disk hold some four reports each."""
    sizes: dict[str, Any] = {
        "device_cache": "60MiB",
        "host_cache": "60MiB",
        "disk_cache": "100MiB",
        "disk_cache_dir": folder,
    }
    config = EngineConfig(
        model=model,
        backend="vllm",
        vllm_args={"dtype": "float32", "max_model_len": 1024},
        **{**sizes, **settings},
    )
    with RAGCacheEngine(config) as engine:
        yield engine


def ask(engine: RAGCacheEngine, document: Document) -> tuple[str, int, int]:
    """Return an answer, its prompt tokens, and how many of them came from any tier."""
    prompt = TEMPLATE.format(context=document.text, question="Which item weighs most?")
    answer = engine.generate(prompt, [document], SamplingOptions(max_tokens=4))
    return answer.text, answer.usage.prompt_tokens, answer.usage.cached.total


def fill(engine: RAGCacheEngine, count: int = 8) -> None:
    """Ask twice about more documents than all tiers hold."""
    for number in range(count):
        for _ in range(2):
            ask(engine, report(f"report {number}"))


def chat(engine: RAGCacheEngine, question: str) -> int:
    """Return how many tokens of a chat about the handbook came from any tier."""
    messages = [{"role": "user", "content": f"{HANDBOOK.text}{question}"}]
    prompt = engine.chat.prompt(messages)
    answer = engine.generate(prompt, [HANDBOOK], SamplingOptions(max_tokens=4))
    return answer.usage.cached.total


def chat_with_cache_point(engine: RAGCacheEngine) -> tuple[KeptDocuments, ...]:
    """Let a chat be kept up to a point behind the handbook; return what is kept then."""
    chat(engine, f"{cache_point(3600)}Which weighs most?")
    deadline = time.monotonic() + 60
    while not (kept := engine.kept()) or not all(map(is_whole, kept)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return kept


def kill_model() -> None:
    for process in psutil.Process().children(recursive=True):
        if "EngineCore" in " ".join([process.name(), *process.cmdline()]):
            process.kill()


def is_whole(kept: KeptDocuments) -> bool:
    return 0 < kept.tokens == kept.held_tokens


def test_what_is_kept_on_disk_outlives_traffic_a_killed_model_and_the_process(
    demo_model: str, tmp_path: Path
):
    with engine_with(demo_model, tmp_path) as engine:
        exact, _, _ = ask(engine, HANDBOOK)
        (kept,) = engine.keep([HANDBOOK], for_s=3600, template=TEMPLATE)
        assert (kept.documents, kept.tier) == (("handbook",), "disk")
        assert is_whole(kept)
        fill(engine)
        assert engine.stats().tiers.evicted["disk"] > 0
        assert all(map(is_whole, engine.kept()))
        text, _, cached = ask(engine, HANDBOOK)
        assert text == exact
        assert cached >= kept.tokens  # the question may be cached too
        kill_model()
        fill(engine, 2)
        assert engine.stats().restarts == 1
        assert ask(engine, HANDBOOK)[2] >= kept.tokens
    # Nobody asks to keep it this time. Cache points have half of what may be kept.
    with engine_with(demo_model, tmp_path, kept_share=1.0) as engine:
        fill(engine)
        text, _, cached = ask(engine, HANDBOOK)
        assert text == exact
        assert cached >= kept.tokens  # the question may be cached too
        engine.release(["handbook"])
        fill(engine)
        assert ask(engine, HANDBOOK)[2] < kept.tokens
        (point,) = chat_with_cache_point(engine)
        assert (point.documents[0], point.tier) == ("handbook", "host")
        fill(engine)
        assert chat(engine, "Which is the lightest?") >= point.tokens
