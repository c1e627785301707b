"""Settings of vLLM with which no test of ours has ever run the knowledge tree."""

from __future__ import annotations

from vllm.config import VllmConfig


def find_untried(config: VllmConfig) -> str | None:
    """Return what of this configuration was never tried with the knowledge tree; None if all was."""
    parallel = config.parallel_config
    sizes = {
        "pipeline parallelism": "pipeline_parallel_size",
        "decode context parallelism": "decode_context_parallel_size",
        "prefill context parallelism": "prefill_context_parallel_size",
        "several nodes": "nnodes",
    }
    for what, field in sizes.items():
        size: int = getattr(parallel, field)
        if size > 1:
            return f"{what} ({field}={size})"
    return None if config.speculative_config is None else "speculative decoding"
