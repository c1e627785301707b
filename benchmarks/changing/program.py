"""Runs the callers on an index, then compares it with a quiet one and looks for forgotten documents."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from changing.callers import Caller, Gone, Index, survivors
from changing.corpus import QUESTIONS, write_question
from ragcache_engine import EngineConfig, MemoryBackend, RAGCacheEngine, SamplingOptions

CALLERS = 8
# Too small for all documents, so that every tier evicts.
MODEL_TIERS = {"device_cache": "192MiB", "host_cache": "384MiB", "disk_cache": "1GiB"}
DEVICE_BLOCKS, HOST_BLOCKS, DISK_BLOCKS = 130, 260, 700


def run_program(description: str, make_index: Callable[[RAGCacheEngine], Index]) -> int:
    """Read the command line, run, print what was seen. Returns 0 if nothing failed, else 1."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument(
        "--model", help="a folder or hub id; by default, the engine without a model"
    )
    parser.add_argument("--change-every", type=float, default=0.5, help="seconds, for each thread")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ragcache-changing-") as folder:
        with start_engine(parsed.model, Path(folder, "kv")) as engine:
            index = make_index(engine)
            callers = call(index, engine, parsed.minutes * 60, parsed.change_every)
            counts = sum((caller.counts for caller in callers), Counter[str]())
            engine.forget({name for caller in callers for name in caller.gone_shared})
            # A check caches what it asks about, so prompts that begin others come first.
            private = sorted(
                (gone for caller in callers for gone in caller.gone),
                key=lambda gone: len(gone.before),
            )
            left = [gone for gone in private if is_left(engine, gone)]
            answers = ask_everything(index)
            stats = engine.stats()
        with start_engine(parsed.model, Path(folder, "quiet")) as quiet_engine:
            quiet = make_index(quiet_engine)
            for name, text in survivors(callers).items():
                quiet.insert(name, text)
            expected = ask_everything(quiet)
    different = [question for question in expected if answers[question] != expected[question]]
    print(
        ", ".join(f"{name} {counts[name]:,}" for name in ("query", "insert", "refresh", "delete"))
    )
    print(f"failed: {counts['failed']}; requests that the engine failed: {stats.failed}")
    print(f"evicted: {dict(stats.tiers.evicted)}; hit ratio {stats.hit_ratio():.2f}")
    print(f"answers unlike those of a quiet index: {len(different)} of {len(expected)}")
    print(f"forgotten documents left in a tier: {len(left)} of {len(private)}")
    for note in [note for caller in callers for note in caller.notes]:
        print(f"  {note}")
    return 1 if counts["failed"] or stats.failed or different or left else 0


def start_engine(model: str | None, disk_folder: Path) -> RAGCacheEngine:
    """Start an engine whose answers depend on the whole prompt."""
    if model is None:
        backend = MemoryBackend(
            _digest, device_blocks=DEVICE_BLOCKS, host_blocks=HOST_BLOCKS, disk_blocks=DISK_BLOCKS
        )
        return RAGCacheEngine(EngineConfig(backend="memory"), backend=backend)
    arguments = {"dtype": "float32", "max_model_len": 2048}
    settings = {"model": model, "vllm_args": arguments, "disk_cache_dir": disk_folder}
    return RAGCacheEngine(EngineConfig.model_validate({**settings, **MODEL_TIERS}))


def call(index: Index, engine: RAGCacheEngine, seconds: float, every_s: float) -> Sequence[Caller]:
    """Let all callers change and ask until the time is up."""
    deadline = time.monotonic() + seconds
    callers = [
        Caller(
            number,
            index,
            engine,
            callers=CALLERS,
            deadline=deadline,
            change_every_s=every_s,
        )
        for number in range(CALLERS)
    ]
    for caller in callers:
        caller.fill()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return callers


def ask_everything(index: Index) -> dict[str, object]:
    questions = [
        write_question(topic, number) for topic in range(2 * CALLERS) for number in range(QUESTIONS)
    ]
    return {question: index.ask(question) for question in questions}


def is_left(engine: RAGCacheEngine, gone: Gone) -> bool:
    """Return whether any tier still has tensors of the document, where its last prompt had it."""
    prompt = f"{gone.before}{gone.text}\n\nIs it gone?"
    usage = engine.generate(prompt, options=SamplingOptions(max_tokens=1)).usage
    tokens_before = len(engine.tokenize(gone.before)) if gone.before else 0
    return usage.cached.total > tokens_before


def _digest(prompt: str) -> str:
    return sha256(prompt.encode()).hexdigest()
