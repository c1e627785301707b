"""Chooses the data type in which a command runs its model."""

from __future__ import annotations

from ragcache_cli.terminal import Phases
from ragcache_engine.backends.vllm.installed import installed_vllm


def choose_dtype(asked: str, backend: str, notes: Phases) -> str:
    """Return `asked`; but "float32" for "auto" on a CPU that is slow in bfloat16, and say so.

    vLLM's own choice would be bfloat16 for nearly every model. asked, and the result: as vLLM spells it,
    or "auto".
    """
    wheel = installed_vllm()
    if asked != "auto" or backend == "memory" or wheel is None or not wheel.is_cpu:
        return asked
    from ragcache_engine.backends.vllm.cpu_precision import is_slow_in_bfloat16

    if not is_slow_in_bfloat16():
        return asked
    notes.console.print(
        "[dim]This CPU has no fast product in bfloat16, so the model runs in float32 "
        "(--dtype bfloat16 would keep vLLM's choice).[/dim]",
        highlight=False,
    )
    return "float32"
