"""Does vLLM start here, and RAGCache, and with what? And what is the machine?"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

from gpu.asking import Prompt, StockEngine, prompt_of, words
from gpu.model import load, our_engine, token_bytes
from gpu.run import Run

LADDER: tuple[tuple[dict[str, str], dict[str, Any]], ...] = (
    ({}, {}),
    ({}, {"enforce_eager": True}),
    ({}, {"enforce_eager": True, "attention_backend": "TRITON_ATTN"}),
    (
        {"VLLM_USE_V2_MODEL_RUNNER": "0"},
        {"enforce_eager": True, "attention_backend": "TRITON_ATTN"},
    ),
)
"""Environment and arguments to start with: vLLM's own choice first, then less and less of it."""


async def start(run: Run, system: str) -> None:
    """Start vLLM or RAGCache as it comes; say with what it runs. system: "vllm" or "ragcache"."""
    await {"vllm": start_vllm, "ragcache": start_ragcache}[system](run)


async def start_vllm(run: Run) -> None:
    """Start vLLM without a cache, and keep how long it prefills a token."""
    began, sizes, given = time.perf_counter(), run.sizes, load(run)
    stock = StockEngine(
        kv_cache_memory_bytes=2 * sizes.context * token_bytes(given["model"], sizes.dtype),
        enable_prefix_caching=False,
        **run.vllm_args(sizes.dtype, max_model_len=sizes.context, **given),
    )
    seconds = time.perf_counter() - began
    token_s = 0.0
    for turn, length in enumerate((*sizes.lengths, sizes.lengths[-1])):  # the first may compile
        reply = await stock.ask(Prompt(words(f"start {turn}", length), {}), 1)
        token_s = reply.ttft_s / reply.prompt_tokens
    run.keep_settings(prefill_token_s=token_s)
    config = stock.config
    run.emit(
        "started",
        system="vLLM",
        seconds=round(seconds, 1),
        prefill_tokens_s=round(1 / token_s),
        attention=str(config.attention_config.backend or "vLLM's choice"),
        eager=config.model_config.enforce_eager,
        cuda_graphs=str(config.compilation_config.cudagraph_mode),
        v2_runner=str(getattr(config, "use_v2_model_runner", "unknown")),
        arguments=run.settings.get("arguments"),
        environment=run.settings.get("environment"),
    )
    stock.close()


async def start_ragcache(run: Run) -> None:
    """Start RAGCache with the settings that vLLM has started with, and ask it the same twice."""
    began, sizes = time.perf_counter(), run.sizes
    ours = our_engine(run, device=sizes.device, host=sizes.host)
    seconds = time.perf_counter() - began
    prompt = prompt_of({"d": words("d", sizes.lengths[0])}, "q")
    first, second = await ours.ask(prompt, 4), await ours.ask(prompt, 4)
    run.emit(
        "started",
        system="RAGCache",
        seconds=round(seconds, 1),
        processes=os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
        same_answer_again=first.token_ids == second.token_ids,
        cached=second.cached_tokens,
    )
    ours.close()


async def machine(run: Run, detail: str) -> None:
    """Say what the machine is, and how fast bytes go between host and device."""
    import platform

    import torch
    from vllm import __version__

    facts = {
        "vllm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "shm_gib": round(shutil.disk_usage("/dev/shm").free / (1 << 30), 1),
        "disk_gib": round(shutil.disk_usage(run.out).free / (1 << 30), 1),
        "device": "CPU" if run.is_cpu else torch.cuda.get_device_name(),
    }
    if not run.is_cpu:
        facts["gpu_free_gib"] = round(torch.cuda.mem_get_info()[0] / (1 << 30), 1)
        facts |= bandwidths()
    run.emit("machine", **facts)


def bandwidths() -> dict[str, float]:
    """Return GB/s between pinned host memory and the device, both ways: the best of three gigabytes."""
    import torch

    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    found = {}
    for name, target, source in (("to_device", device, host), ("to_host", host, device)):
        seconds = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        found[f"{name}_gb_s"] = round(host.nbytes / min(seconds) / 1e9, 1)
    return found
