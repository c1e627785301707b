"""Where memory is short, the engine says which of its sizes to lower, and to what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ragcache_engine.backends.vllm import memory_advice
from ragcache_engine.backends.vllm.memory_advice import (
    MemorySizes,
    free_host_bytes,
    tells_of_memory,
    weights_bytes,
)

GIB, MIB = 1 << 30, 1 << 20
ON_CPU = MemorySizes(2 * GIB, 4 * GIB, 3 * GIB, 8192, is_cpu=True)
ON_GPU = MemorySizes(20 * GIB, None, 6 * GIB, 8192, is_cpu=False, device_share=0.92)


def test_a_machine_with_enough_memory_is_told_nothing():
    assert ON_CPU.describe_shortage(9 * GIB) is None
    assert ON_GPU.describe_shortage(6 * GIB) is None, "its weights are the device's"


@pytest.mark.parametrize(
    ("sizes", "free_bytes", "fits"),
    [
        (ON_CPU, 8 * GIB, "host_cache=2048MiB fits"),
        (ON_CPU, 5 * GIB, "device_cache=3072MiB without a host_cache fits"),
        (ON_CPU, 1 * GIB, "take a smaller model"),
        (ON_GPU, 5 * GIB, "host_cache=5120MiB fits"),
    ],
)
def test_a_machine_with_too_little_is_told_the_figure_that_fits(
    sizes: MemorySizes, free_bytes: int, fits: str
):
    told = sizes.describe_shortage(free_bytes)
    assert told
    assert fits in told
    assert f"{free_bytes // MIB:,} MiB of memory free" in told


def test_what_ran_out_of_memory_names_what_is_set():
    assert ON_CPU.describe_remedy() == (
        "lower device_cache (now 4,096 MiB), host_cache (now 3,072 MiB) or max_model_len in vllm_args "
        "(now 8,192)"
    )
    assert "gpu_memory_utilization in vllm_args (now 0.92)" in ON_GPU.describe_remedy()
    assert "host_cache" not in replace(ON_GPU, host_cache_bytes=0).describe_remedy()


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried",
        "OSError: [Errno 12] Cannot allocate memory",
        "ValueError: No available memory for the cache blocks.",
        "RuntimeError: cudaHostRegister failed",
    ],
)
def test_errors_of_short_memory_are_recognised(text: str):
    assert tells_of_memory(text)
    assert not tells_of_memory("KeyError: 'rope_scaling'")


def test_the_weights_are_those_of_the_models_folder(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    (tmp_path / "config.json").write_text("{}")
    assert weights_bytes(str(tmp_path)) == 100
    assert weights_bytes("org/no-folder") == 0


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_advice, "CGROUP", tmp_path)
    assert free_host_bytes() > 100 * MIB
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{90 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {30 * MIB}\n")
    assert free_host_bytes() == 40 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert free_host_bytes() > 100 * MIB
