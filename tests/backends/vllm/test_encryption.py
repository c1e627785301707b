"""An encrypted disk tier on real vLLM: found again with its key, and never with another one."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ragcache_engine import (
    Answer,
    ConfigError,
    Document,
    EngineConfig,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.tiers.disk.naming import PLAIN

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
pytest.importorskip("cryptography")

REPORT = Document("report", " ".join(f"Item {line} weighs {3 * line} kg." for line in range(40)))
PROMPT = f"Use the report.\n\n{REPORT.text}\n\nWhich item weighs most?"


@contextmanager
def engine_with(model: str, folder: Path, key: str) -> Iterator[RAGCacheEngine]:
    config = EngineConfig(
        model=model,
        backend="vllm",
        device_cache="60MiB",
        host_cache="60MiB",
        disk_cache="400MiB",
        disk_cache_dir=folder,
        disk_cache_key=key,
        vllm_args={"dtype": "float32", "max_model_len": 1024},
    )
    with RAGCacheEngine(config) as engine:
        yield engine


def answer(engine: RAGCacheEngine) -> Answer:
    return engine.generate(PROMPT, [REPORT], SamplingOptions(max_tokens=8))


def test_tensors_are_found_with_their_key_and_computed_anew_with_another(
    demo_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("FIRST", "OTHER"):
        monkeypatch.setenv(name, base64.b64encode(os.urandom(32)).decode())
    folder = tmp_path / "kv"
    with engine_with(demo_model, folder, "env:FIRST") as engine:
        first = answer(engine)
    stored = list(folder.rglob("*.kv"))
    assert stored
    assert not any(PLAIN.mark("report").encode() in path.read_bytes() for path in stored)
    with engine_with(demo_model, folder, "env:FIRST") as engine:
        again = answer(engine)
        engine.forget(["report"])
        assert not [*folder.rglob("*.kv")]
        answer(engine)
    with engine_with(demo_model, folder, "env:OTHER") as engine:
        other = answer(engine)
    assert again.usage.cached.disk + again.usage.cached.host > 0.9 * first.usage.prompt_tokens - 16
    assert other.usage.cached.total == 0
    assert first.text == again.text == other.text


def test_an_engine_whose_key_is_not_there_does_not_start(demo_model: str, tmp_path: Path):
    with (
        pytest.raises(ConfigError, match="env:NO_SUCH_KEY gives no key"),
        engine_with(demo_model, tmp_path, "env:NO_SUCH_KEY"),
    ):
        pass
