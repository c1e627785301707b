"""What the knowledge tree cannot serve, or does not know, is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from ragcache_engine.backends.vllm.tiers.free_blocks import FreeBlocks
from ragcache_engine.backends.vllm.tiers.support import (
    UnknownVLLM,
    find_obstacle,
    require_known_parts,
)

pytestmark = pytest.mark.vllm

SHAPE = {"block_size": 32, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
FULL = FullAttentionSpec(**SHAPE)


def engine(**changed: Any) -> Any:
    parallel = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "nnodes": 1,
    }
    speculative = changed.pop("speculative_config", None)
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**parallel, **changed}),
        speculative_config=speculative,
    )


def cache(*specs: Any) -> Any:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def test_one_group_of_full_attention_is_served():
    assert find_obstacle(engine(), cache(FULL)) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"decode_context_parallel_size": 2}, "decode context parallelism"),
        ({"prefill_context_parallel_size": 2}, "prefill context parallelism"),
        ({"nnodes": 2}, "several nodes"),
        ({"speculative_config": object()}, "speculative decoding"),
    ],
)
def test_what_was_never_run_is_refused_by_name(changed: dict[str, Any], named: str):
    assert named in str(find_obstacle(engine(**changed), cache(FULL)))


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        ([FULL, FULL], "blocks of 2 kinds"),
        ([SlidingWindowSpec(**SHAPE, sliding_window=64)], "SlidingWindowSpec"),
        ([MLAAttentionSpec(**SHAPE)], "MLAAttentionSpec"),
    ],
)
def test_other_kinds_of_blocks_are_refused_by_name(specs: list[Any], named: str):
    assert named in str(find_obstacle(engine(), cache(*specs)))


def scheduler(queue: Any = None, waiting: Any = None) -> Any:
    pool = SimpleNamespace(free_block_queue=queue or FreeKVCacheBlockQueue([]))
    return SimpleNamespace(
        kv_cache_manager=SimpleNamespace(block_pool=pool),
        waiting=FCFSRequestQueue() if waiting is None else waiting,
    )


def test_the_installed_vllm_is_known():
    require_known_parts(scheduler(), FreeBlocks)


def test_a_queue_that_moved_is_an_error_with_vllms_version(monkeypatch: pytest.MonkeyPatch):
    from vllm import __version__

    with pytest.raises(UnknownVLLM, match="another queue") as error:
        require_known_parts(scheduler(queue=[1]), FreeBlocks)
    assert __version__ in str(error.value)
    with pytest.raises(UnknownVLLM, match="no RequestQueue"):
        require_known_parts(scheduler(waiting=[]), FreeBlocks)


def test_a_new_method_of_a_queue_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FreeKVCacheBlockQueue, "rotate", lambda self: None, raising=False)
    with pytest.raises(UnknownVLLM, match="new methods: rotate"):
        require_known_parts(scheduler(), FreeBlocks)
    monkeypatch.undo()
    monkeypatch.setattr(FCFSRequestQueue, "skip_request", lambda self: None, raising=False)
    with pytest.raises(UnknownVLLM, match="waiting requests"):
        require_known_parts(scheduler(), FreeBlocks)
