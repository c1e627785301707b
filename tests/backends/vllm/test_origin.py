"""Whatever changes the bytes of tensors on disk changes their origin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragcache_engine.tiers.disk.block_file import Origin

pytest.importorskip("vllm")

import torch

from ragcache_engine.backends.vllm.arguments import build_vllm_config
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.tiers import origin as module
from ragcache_engine.backends.vllm.tiers.origin import (
    NoOrigin,
    WorkerLayout,
    build_origin,
    describe_worker,
)

pytestmark = pytest.mark.vllm

HERE = WorkerLayout("CPU_ATTN vec", module._identify_machine())


def origin(demo_model: str, folder: Path, worker: WorkerLayout = HERE, **vllm_args: Any) -> Origin:
    budget = TierBudget(policy="lru", host_bytes=1 << 20, disk_bytes=0, reorder_window=1)
    config = build_vllm_config(demo_model, 4 << 30, budget, {"dtype": "float32", **vllm_args})
    return build_origin(
        config, {(0, 0): worker}, block_tokens=32, block_layout="LBHNC 64", folder=folder
    )


def test_two_engines_of_one_configuration_share_their_files(demo_model: str, tmp_path: Path):
    assert origin(demo_model, tmp_path) == origin(demo_model, tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "bfloat16"},
        {"hf_overrides": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}},
        {"hf_overrides": {"rms_norm_eps": 1e-3}},
    ],
)
def test_an_argument_that_changes_the_tensors_changes_the_origin(
    demo_model: str, tmp_path: Path, changed: dict[str, Any]
):
    assert origin(demo_model, tmp_path, **changed) != origin(demo_model, tmp_path)


def test_an_argument_that_changes_no_tensor_keeps_the_origin(demo_model: str, tmp_path: Path):
    assert origin(demo_model, tmp_path, max_num_seqs=3) == origin(demo_model, tmp_path)
    assert origin(demo_model, tmp_path, max_model_len=512) == origin(demo_model, tmp_path)


def test_another_layout_of_the_kernels_changes_the_origin(demo_model: str, tmp_path: Path):
    amx = WorkerLayout("CPU_ATTN amx", HERE.machine)
    assert origin(demo_model, tmp_path, amx) != origin(demo_model, tmp_path)


def test_another_version_of_vllm_changes_the_origin(
    demo_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = origin(demo_model, tmp_path)
    monkeypatch.setattr(module, "vllm_version", "99.0")
    assert origin(demo_model, tmp_path) != before


def test_random_weights_have_no_origin(demo_model: str, tmp_path: Path):
    with pytest.raises(NoOrigin, match="random weights"):
        origin(demo_model, tmp_path, load_format="dummy")


def test_a_worker_on_another_machine_leaves_no_origin(demo_model: str, tmp_path: Path):
    with pytest.raises(NoOrigin, match="another machine"):
        origin(demo_model, tmp_path, WorkerLayout("CPU_ATTN vec", "elsewhere"))


class Layer(module.AttentionLayerBase):
    def __init__(self, isa: str, *shape: int) -> None:
        self.isa, self.kv_cache = isa, torch.zeros(shape)

    def get_attn_backend(self) -> Any:
        return SimpleNamespace(get_name=lambda: "CPU_ATTN")

    def get_kv_cache_spec(self, vllm_config: Any) -> None:
        return None


def described(*layers: Layer, blocks: int) -> str:
    context = {f"layer {at}": layer for at, layer in enumerate(layers)}
    config: Any = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=context)
    )
    return describe_worker(config, blocks).layout


def test_a_layout_tells_the_kernels_apart_but_not_the_number_of_blocks():
    assert described(Layer("vec", 2, 9, 4), blocks=9) == described(
        Layer("vec", 2, 7, 4), Layer("vec", 2, 7, 4), blocks=7
    )
    assert described(Layer("vec", 2, 9, 4), blocks=9) != described(Layer("amx", 2, 9, 4), blocks=9)
    assert described(Layer("vec", 2, 9, 4), blocks=9) != described(Layer("vec", 9, 2, 4), blocks=9)
