"""From few settings to vLLM's many; what cannot work is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_engine import ConfigError, EngineConfig, ModelNotFound, RAGCacheEngine

pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext

from ragcache_engine.backends.vllm import cpu_defaults, shared_memory
from ragcache_engine.backends.vllm.arguments import GIB, build_vllm_config
from ragcache_engine.backends.vllm.budget import QUEUES_BYTES, TierBudget
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.knowledge import CostProfile

pytestmark = pytest.mark.vllm

NO_TIERS = TierBudget(policy="lru")


def test_prefix_caching_is_on(demo_model: str):
    config = build_vllm_config(demo_model, GIB, NO_TIERS, {})
    assert config.cache_config.enable_prefix_caching
    assert config.cache_config.kv_cache_memory_bytes == GIB


@pytest.mark.skipif(not current_platform.is_cpu(), reason="the GPU build has its own defaults")
def test_on_a_cpu_blocks_are_fine_and_the_cache_leaves_memory_for_others(demo_model: str):
    config = build_vllm_config(demo_model, None, NO_TIERS, {})
    assert config.cache_config.block_size == cpu_defaults.BLOCK_TOKENS
    assert 0 < (config.cache_config.kv_cache_memory_bytes or 0) <= 4 * GIB


def test_steps_and_batches_are_as_large_as_those_of_the_class_a_swap_replaces(demo_model: str):
    ours = build_vllm_config(demo_model, GIB, NO_TIERS, {}).scheduler_config
    theirs = EngineArgs(model=demo_model).create_engine_config(UsageContext.LLM_CLASS)
    assert ours.max_num_batched_tokens == theirs.scheduler_config.max_num_batched_tokens
    assert ours.max_num_seqs == theirs.scheduler_config.max_num_seqs


def test_what_the_user_says_to_vllm_wins(demo_model: str):
    arguments = {"block_size": 64, "max_model_len": 1024, "dtype": "float32"}
    config = build_vllm_config(demo_model, GIB, NO_TIERS, arguments)
    assert config.cache_config.block_size == 64
    assert config.model_config.max_model_len == 1024


@pytest.mark.skipif(not current_platform.is_cpu(), reason="a GPU computes in bfloat16")
@pytest.mark.parametrize(
    ("is_slow", "dtype", "warned"),
    [(True, "auto", True), (True, "float32", False), (False, "auto", False)],
)
def test_a_cpu_that_is_slow_in_bfloat16_is_told_and_the_choice_stays_vllms(
    demo_model: str, monkeypatch, caplog, is_slow: bool, dtype: str, warned: bool
):
    monkeypatch.setattr(
        "ragcache_engine.backends.vllm.arguments.is_slow_in_bfloat16", lambda: is_slow
    )
    config = build_vllm_config(demo_model, GIB, NO_TIERS, {"dtype": dtype})
    assert str(config.model_config.dtype) == f"torch.{'bfloat16' if dtype == 'auto' else dtype}"
    assert ('set vllm_args={"dtype": "float32"}' in caplog.text) == warned


def test_a_cost_profile_travels_to_where_the_tiers_decide(demo_model: str, tmp_path: Path):
    path = tmp_path / "profile.json"
    path.write_text(CostProfile.default().to_json())
    budget = TierBudget(policy="lru", cost_profile=path)
    transfer = build_vllm_config(demo_model, GIB, budget, {}).kv_transfer_config
    assert transfer is not None
    told = TierSettings.from_extra_config(transfer.kv_connector_extra_config).profile
    assert told is not None
    assert CostProfile.from_json(told) == CostProfile.default()


@pytest.mark.parametrize("model", ["/no/such/folder", "./nor/this", "~/nor/that"])
def test_a_folder_that_is_not_there_is_no_question_to_the_hub(model: str):
    with pytest.raises(ModelNotFound, match="does not exist"):
        RAGCacheEngine(EngineConfig(model=model, backend="vllm"))


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        RAGCacheEngine(EngineConfig(model=str(tmp_path), backend="vllm"))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"vllm_args": {"max_model_length": 1024}}, "max_model_length"),
        ({"vllm_args": {"model": "other"}}, "EngineConfig"),
        ({"vllm_args": {"max_model_len": 1_000_000}}, "max_model_len"),
        ({"vllm_args": {"dtype": "float7"}}, "float7"),
        ({"device_cache": "1MiB"}, r"raise device_cache to at least 0\.\d+ GiB"),
    ],
)
def test_arguments_that_cannot_work_are_refused_by_name(
    demo_model: str, settings: dict[str, object], word: str
):
    with pytest.raises(ConfigError, match=word):
        RAGCacheEngine(
            EngineConfig.model_validate({"model": demo_model, "backend": "vllm", **settings})
        )


def tiers_within(shared_bytes: int, model: str, monkeypatch, **sizes: int) -> TierSettings:
    """The tiers of an engine on a machine with this much free shared memory."""
    monkeypatch.setattr(shared_memory, "free_bytes", lambda: shared_bytes)
    transfer = build_vllm_config(model, GIB, TierBudget("lru", **sizes), {}).kv_transfer_config
    assert transfer is not None
    return TierSettings.from_extra_config(transfer.kv_connector_extra_config)


def test_a_host_tier_larger_than_shared_memory_is_switched_off_and_the_warning_says_what_to_change(
    demo_model: str, monkeypatch, caplog
):
    tiers = tiers_within(64 << 20, demo_model, monkeypatch, host_bytes=GIB, disk_bytes=GIB)
    assert (tiers.host_bytes, tiers.disk_bytes, tiers.disk_folder) == (0, 0, None)
    assert "the host tier is switched off, and the disk tier with it" in caplog.text
    for change in ("--shm-size=1152m", "--ipc=host", "smaller host cache"):
        assert change in caplog.text


def test_a_host_tier_that_fits_into_shared_memory_is_taken_as_it_was_asked_for(
    demo_model: str, monkeypatch, caplog
):
    tiers = tiers_within(2 * GIB, demo_model, monkeypatch, host_bytes=GIB, disk_bytes=GIB)
    assert (tiers.host_bytes, tiers.disk_bytes) == (GIB, GIB)
    assert "shm" not in caplog.text


def test_a_host_tier_that_nobody_asked_for_shrinks_to_what_shared_memory_has():
    chosen, asked = TierBudget("lru"), TierBudget("lru", host_bytes=4 * GIB)
    assert chosen.host_bytes_within(4 * GIB, GIB) == GIB - QUEUES_BYTES
    assert chosen.host_bytes_within(4 * GIB, 128 << 20) == 0
    assert asked.host_bytes_within(4 * GIB, GIB) == 0
    assert asked.host_bytes_within(4 * GIB, 8 * GIB) == 4 * GIB
