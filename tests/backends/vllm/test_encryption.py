"""An encrypted disk tier on real vLLM: found again with its key, and never with another one."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine import (
    Answer,
    ConfigError,
    Document,
    EngineConfig,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.tiers.disk.naming import PLAIN, owner_in

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
pytest.importorskip("cryptography")

REPORT = Document("report", " ".join(f"Item {line} weighs {3 * line} kg." for line in range(40)))
PROMPT = f"Use the report.\n\n{REPORT.text}\n\nWhich item weighs most?"


@contextmanager
def engine_with(model: str, folder: Path, key: str, **settings: Any) -> Iterator[RAGCacheEngine]:
    config = EngineConfig(
        model=model,
        backend="vllm",
        device_cache="60MiB",
        host_cache="60MiB",
        disk_cache="400MiB",
        disk_cache_dir=folder,
        disk_cache_key=key,
        vllm_args={"dtype": "float32", "max_model_len": 1024},
        **settings,
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


def test_a_forgotten_tenant_leaves_no_file_and_no_key_and_a_quota_bounds_it(
    demo_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FIRST", base64.b64encode(os.urandom(32)).decode())
    folder = tmp_path / "kv"

    def found(tenant: str) -> int:
        usage = engine.generate(
            PROMPT, [REPORT], SamplingOptions(max_tokens=1), tenant=tenant
        ).usage
        return usage.cached.total

    with engine_with(demo_model, folder, "env:FIRST", disk_cache_per_tenant="25MiB") as engine:
        for tenant in ("shop::anna", "shop::ben", "press"):
            found(tenant)
    owners = Counter(owner_in(path.stem) for path in folder.rglob("*.kv"))
    sizes = {path.stat().st_size for path in folder.rglob("*.kv")}
    shop, press = sorted(owners.values(), reverse=True)
    assert shop * max(sizes) <= 25 << 20, "two users of one tenant share its quota"
    assert shop < 2 * press
    keys = {path.name for path in folder.rglob("tenant-*")}
    with engine_with(demo_model, folder, "env:FIRST") as engine:
        assert found("shop::anna") > 0
        engine.forget_tenant("shop")
        assert {owner_in(path.stem) for path in folder.rglob("*.kv")} == {
            name.removeprefix("tenant-") for name in keys if owners[name[7:]] == press
        }
        assert len({path.name for path in folder.rglob("tenant-*")}) == len(keys) - 1
        assert [found(one) for one in ("shop::anna", "shop::ben")] == [0, 0]
        assert found("press") > 0


def test_an_engine_whose_key_is_not_there_does_not_start(demo_model: str, tmp_path: Path):
    with (
        pytest.raises(ConfigError, match="env:NO_SUCH_KEY gives no key"),
        engine_with(demo_model, tmp_path, "env:NO_SUCH_KEY"),
    ):
        pass
