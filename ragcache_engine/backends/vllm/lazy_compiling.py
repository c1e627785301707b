"""Keeps vLLM from compiling in the middle of its service."""

from __future__ import annotations

import torch
from vllm.config import CompilationMode, VllmConfig
from vllm.platforms import current_platform


def keep_eager(config: VllmConfig) -> None:
    """Let all of a worker run uncompiled on a CPU, where the model does. Call it in the worker's process.

    vLLM compiles small functions of its sampler when a request first needs them, such as for log
    probabilities, whatever `enforce_eager` says. All requests wait for that: 11 to 23 s on two cores, or
    5 s in a later process.
    """
    if current_platform.is_cpu() and config.compilation_config.mode == CompilationMode.NONE:
        torch.compiler.set_stance("force_eager")
