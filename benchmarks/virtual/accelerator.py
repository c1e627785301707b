"""A simulated accelerator that takes real time, and no processor: the model of an engine under test.

Everything of the engine but the model runs as ever, on the clock on the wall. A step takes as long as the
machine's rates say, and meanwhile the process sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.simulation.clock import VirtualClock
from virtual.machines import REACHED_BYTES, REACHED_FLOPS, STEP_FIXED_S, PublishedSteps

PARAMETERS, LAYERS, WIDTH, TOKEN_BYTES = 7.25e9, 32, 4096, 131_072
"""Of the paper's model, Mistral-7B: key-value bytes of a token in bfloat16."""

RATES: Mapping[str, tuple[float, float, float]] = {
    "a10g": (125e12, 600e9, 32e9),
    "h100": (989e12, 3.35e12, 64e9),
}
"""Published peaks: bfloat16 without sparsity, memory, and PCI Express in one direction."""
STEP_TOKENS: Mapping[str, int] = {"a10g": 2048, "h100": 8192}
"""vLLM's defaults for the size of a step."""
BLOCK_TOKENS = 16
DISK_BYTES_PER_S = 7e9 * REACHED_BYTES


class OwedClock(VirtualClock):
    """The clock on the wall, ahead by what the model has computed and the process has not slept yet."""

    def __init__(self) -> None:
        super().__init__()
        self._owed_s = 0.0

    def now(self) -> float:
        return time.monotonic() + self._owed_s

    def run_model(self, seconds: float) -> None:
        self._owed_s += seconds

    def wait_until(self, at_s: float) -> None:
        self._owed_s += max(0.0, at_s - self.now())

    def pay(self) -> float:
        """Return how long to sleep."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return owed_s


class Accelerator(MemoryBackend):
    """A 7B model on one GPU. name: one of RATES. tokens: what device, host and disk hold.

    recompute_ratio: None borrows nothing.
    """

    def __init__(
        self, name: str, tokens: tuple[int, int, int], recompute_ratio: float | None
    ) -> None:
        flops, memory, link = RATES[name]
        steps = PublishedSteps(
            PARAMETERS,
            LAYERS,
            WIDTH,
            TOKEN_BYTES,
            REACHED_FLOPS * flops,
            REACHED_BYTES * memory,
            STEP_FIXED_S,
        )
        device, host, disk = (count // BLOCK_TOKENS for count in tokens)
        super().__init__(
            context_tokens=tokens[0],
            block_tokens=BLOCK_TOKENS,
            device_blocks=device,
            host_blocks=host,
            disk_blocks=disk,
            step_tokens=STEP_TOKENS[name],
            prefill_s=lambda cached, computed: steps.step_s([(cached, computed)]),
            decode_s=2 * PARAMETERS / (REACHED_BYTES * memory),
            recompute_ratio=recompute_ratio,
            donors_later=recompute_ratio is not None,
            token_bytes=TOKEN_BYTES,
            host_bytes_per_s=REACHED_BYTES * link,
            disk_bytes_per_s=DISK_BYTES_PER_S,
        )
        self._owed = OwedClock()
        self._clock: VirtualClock = self._owed
        self.now = self._owed.now
        self._scheduler = self._empty_scheduler()

    async def _run(self) -> None:
        """Compute steps one after the other. What is aborted during a step gets nothing of it."""
        while True:
            if not self._answering and not self._scheduler.has_work:
                self._work.clear()
                await self._work.wait()
            done: list[Any] = self._scheduler.step()
            await asyncio.sleep(self._owed.pay())
            for request in done:
                if request in self._answering:
                    self._say(self._answering[request])
