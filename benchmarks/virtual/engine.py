"""One system on a virtual clock: vLLM's real scheduler, block pool and offload, and made-up times."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from without_model import PAGE_BYTES, ModellessEngine

from ragcache_engine.knowledge import CostProfile
from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.disk import SimulatedDisk
from ragcache_engine.tiers.speed import (
    FIRST_BANDWIDTH,
    FIRST_HOST_BANDWIDTH,
    ComputingSpeed,
    CopyingSpeed,
)
from virtual.copies import VirtualCopies
from virtual.machines import Machine

IDLE_STEP_S = 1e-3
"""vLLM's engine core sleeps so long after a step that computes nothing while requests wait for copies."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a play.

    at_s: when it arrives, in seconds after the start of the play; 0 if each comes when one before it has
      ended. search_s: how long its search takes, before the model's process hears of it.
    """

    tokens: Sequence[int]
    segments: Sequence[tuple[int, str | None]]
    answer_tokens: int
    at_s: float = 0.0
    search_s: float = 0.0


@dataclass(slots=True)
class Served:
    """What became of a request: times in seconds after its arrival, and its cached prompt tokens."""

    at_s: float
    prompt_tokens: int
    ttft_s: float = 0.0
    total_s: float = 0.0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    output: SchedulerOutput
    sampled: list[list[int]]
    ends_s: float
    is_idle: bool


class VirtualEngine(ModellessEngine):
    """Plays requests to one system.

    machine: tells the times, and what each tier holds. has_host, has_disk: which slower tiers there are.
    settings: of ModellessEngine.
    """

    def __init__(
        self,
        model: str,
        machine: Machine,
        *,
        scheduler: type,
        has_host: bool,
        has_disk: bool = False,
        disk_folder: Any = None,
        **settings: Any,
    ) -> None:
        self._machine, self.clock = machine, VirtualClock()
        host_blocks = machine.blocks(machine.host_tokens) if has_host else 0
        disk_blocks = machine.blocks(machine.disk_tokens) if has_disk else 0
        # Blocks have the bytes of an empty model, so copies are as much slower as blocks are smaller.
        self._shrunk = PAGE_BYTES / machine.block_bytes
        self._copies = VirtualCopies(
            self.clock,
            PAGE_BYTES,
            machine.host_bytes_per_s * self._shrunk,
            in_step=machine.copies_in_step,
        )
        super().__init__(
            model,
            scheduler=scheduler,
            device_blocks=machine.blocks(machine.device_tokens),
            host_blocks=host_blocks,
            disk_bytes=disk_blocks * (PAGE_BYTES + 1024),
            disk_folder=disk_folder,
            at_once=machine.at_once,
            step_tokens=machine.step_tokens,
            block_tokens=machine.block_tokens,
            check=False,
            **settings,
        )
        if self.cache:
            self.scheduler.bounds_steps = not machine.copies_in_step  # as on an accelerator
            self.scheduler.connector.now = self.clock.now
            speeds = self.cache.speeds
            speeds.computing = ComputingSpeed(CostProfile.default())
            speeds.from_host = CopyingSpeed(FIRST_HOST_BANDWIDTH * self._shrunk)
            speeds.from_disk = CopyingSpeed(FIRST_BANDWIDTH * self._shrunk)
            if has_disk:
                slots: list[bytes | None] = [None] * host_blocks
                bytes_per_s = machine.disk_bytes_per_s * self._shrunk
                self.cache.attach_disk(SimulatedDisk(slots, PAGE_BYTES, bytes_per_s, self.clock))
        self._model_free_s = 0.0
        self._numbers = 0

    def play(self, asked: Sequence[Asked], *, at_once: int | None = None) -> list[Served]:
        """Play requests until all have their answers and nothing is under way.

        at_once: so many requests are under way at a time, and the next comes when one has ended; None:
          each comes at its time.
        """
        outside_s, start_s = self._machine.outside_s, self.clock.now()
        served = [Served(one.at_s, len(one.tokens)) for one in asked]
        first = self._numbers
        self._numbers += len(asked)
        # When the model's process hears of them: half of the way outside lies before it, half behind.
        coming = deque(
            (start_s + one.at_s + one.search_s + outside_s / 2, number)
            for number, one in enumerate(asked)
        )
        if at_once is None:
            coming = deque(sorted(coming))
        arrived: dict[int, float] = {}
        steps: deque[_Step] = deque()
        open_requests = 0
        while coming or steps or self.scheduler.has_requests():
            if not steps and not self.scheduler.has_requests() and coming and at_once is None:
                self.clock.wait_until(coming[0][0])
            while coming and (
                open_requests < at_once if at_once else coming[0][0] <= self.clock.now()
            ):
                _, number = coming.popleft()
                one = asked[number]
                arrived[number] = self.clock.now() if at_once else start_s + one.at_s
                open_requests += 1
                self.ask(
                    str(first + number), one.tokens, one.segments, answer_tokens=one.answer_tokens
                )
            if self.scheduler.has_requests():
                step = self._begin_virtual_step()
                steps.append(step)
                if len(steps) < self._machine.steps_ahead and not step.is_idle:
                    continue
            if not steps:
                continue
            step = steps.popleft()
            self.clock.wait_until(step.ends_s)
            now_s = self.clock.now() + outside_s / 2
            for told in self.end_step(step.output, step.sampled):
                number = int(told.request_id) - first
                result = served[number]
                if told.new_token_ids and not result.ttft_s:
                    result.ttft_s = now_s - arrived[number]
                    result.cached_tokens = (
                        told.prefill_stats.num_cached_tokens if told.prefill_stats else 0
                    )
                if told.finish_reason is not None:
                    result.total_s = now_s - arrived[number]
                    open_requests -= 1
            if self.scheduler.has_requests() and step.is_idle and all(one.is_idle for one in steps):
                self.clock.run_model(IDLE_STEP_S)  # or what it waits for would never end
        return served

    def _begin_virtual_step(self) -> _Step:
        output, sampled = self.begin_step()
        parts = [
            (self.scheduler.requests[name].num_computed_tokens - count, count)
            for name, count in output.num_scheduled_tokens.items()
        ]
        owed_s = self._copies.take_owed_s()
        begins_s = max(self.clock.now(), self._model_free_s)
        self._model_free_s = begins_s + owed_s + self._machine.steps.step_s(parts)
        return _Step(output, sampled, self._model_free_s, not parts)

    def _make_worker(self) -> Any:
        return self._copies
