"""Choose which requests the simulated model computes in each step, and how long the step takes.

The scheduler does what vLLM's does, with two exceptions: tokens of answers do not use up a step's budget,
and steps are no shorter while several requests are answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ragcache_engine.knowledge import ReorderQueue
from ragcache_engine.simulation.borrowing import SimulatedBorrowing
from ragcache_engine.simulation.device import Admission, SimulatedDevice
from ragcache_engine.simulation.request import SimulatedRequest, State

PrefillTime = Callable[[int, int], float]
"""Returns T(cached, computed): the seconds to prefill `computed` tokens after `cached` ones."""


class Scheduler:
    """Continuous batching over a simulated device, on the device's clock.

    step_tokens: the most prompt tokens that a step computes. reorder_window: see ReorderQueue.
    prefill_s: T(cached, computed) of each chunk; a step takes their sum. decode_s: the seconds that a
    step takes in addition if some request computes a token of its answer.
    prefilled_tokens: prompt tokens computed so far.
    """

    def __init__(
        self,
        device: SimulatedDevice,
        *,
        prefill_s: PrefillTime,
        decode_s: float = 0.0,
        step_tokens: float = math.inf,
        reorder_window: int = 32,
    ) -> None:
        self.device = device
        self.prefilled_tokens = 0
        self._prefill_s = prefill_s
        self._decode_s = decode_s
        self._step_tokens = step_tokens
        self._waiting: ReorderQueue[SimulatedRequest] = ReorderQueue(
            device.cached_ratio, reorder_window, glance=device.estimate_cached_ratio
        )
        self._awaiting_copies: list[SimulatedRequest] = []  # in the order in which they came
        self._running: list[SimulatedRequest] = []  # in the order in which they were admitted
        self._borrowing = SimulatedBorrowing(device, step_tokens)

    def add(self, request: SimulatedRequest) -> None:
        """Let a request begin to wait. Raises ValueError if its prompt does not fit on the device."""
        if request.tokens > self.device.sizes.device_tokens:
            raise ValueError(
                f"{request.tokens} tokens do not fit into the {self.device.sizes.device_tokens} of "
                "the simulated device: give it more blocks"
            )
        self.device.add(request)
        self._borrowing.add(request)
        self._waiting.push(request)

    @property
    def queue_lengths(self) -> tuple[int, int]:
        """How many requests wait, and how many run or wait for copies into their memory."""
        return len(self._waiting), len(self._running) + len(self._awaiting_copies)

    def end(self, request: SimulatedRequest, *, completed: bool) -> dict[str, int] | None:
        """End a request between two steps; return its cached tokens by tier, None if it never ran.

        If it borrowed, its `reuse` says what.
        """
        for listed in (self._running, self._awaiting_copies):
            if request in listed:
                listed.remove(request)
                break
        else:
            self._waiting.remove(request)
        request.reuse = self._borrowing.finish(request)
        tokens = self.device.end(request, completed=completed)
        for donor in self._borrowing.take_unwanted(request):
            self.end(donor, completed=False)
        return tokens

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, be it only to fetch a donor."""
        return bool(len(self._waiting) or self._awaiting_copies or self._running)

    def step(self) -> list[SimulatedRequest]:
        """Run one step of the model; return the requests that have computed all their tokens.

        Each of those gets one more token from the model: before the next step, append the token or end
        the request. If no request can compute, time passes until a copy ends.
        """
        self.device.collect_copies()
        self._end_loaded_donors()
        self._ask_for_donors()
        step = _Step(self._step_tokens)
        has_preempted = self._continue_running(step)
        if not has_preempted:
            self._admit_waiting(step)
        self._pass_time(step)
        self.prefilled_tokens += step.prompt_tokens
        self._borrowing.end_step(is_empty=not step.computed)
        self.device.end_step(step.computed, step.prompt_tokens, step.seconds)
        done = [request for request in step.computed if request.computed_tokens == request.tokens]
        for donor in [request for request in done if request.is_donor]:
            self.end(donor, completed=True)
        for request in done:
            request.is_decoding = True
        return [request for request in done if not request.is_donor]

    def _end_loaded_donors(self) -> None:
        """End donors whose whole blocks were loaded: nobody needs what a step would compute of them."""
        for request in list(self._awaiting_copies):
            is_loaded = request.is_donor and request.state is State.LOADED
            missing = request.tokens - request.computed_tokens
            if is_loaded and missing < self.device.sizes.block_tokens:
                self.device.manager.record_admission(request.name, 0, self.device.clock.now())
                self.end(request, completed=True)

    def _ask_for_donors(self) -> None:
        """Put requests for donors that are missing in front of the queue."""
        waiting = [*self._awaiting_copies, *self._waiting]
        for donor in reversed(self._borrowing.begin_step(waiting, self._running)):
            self.device.add(donor)
            self._waiting.prepend(donor)

    def _continue_running(self, step: _Step) -> bool:
        """Continue the running requests. Return whether some were preempted because blocks ran out."""
        has_preempted = False
        for request in list(self._running):
            if request.state is not State.RUNNING:
                continue  # preempted for an earlier request
            while not self._compute(request, step):
                has_preempted = True
                victim = self._running.pop()
                self.device.preempt(victim)
                self._waiting.prepend(victim)
                if victim is request:
                    break
        return has_preempted

    def _admit_waiting(self, step: _Step) -> None:
        for request in list(self._awaiting_copies):
            if step.budget < 1:
                return
            admission = self._admit(request, step)
            if admission is Admission.NO_ROOM:
                return
            if admission is Admission.COMPUTES:
                self._awaiting_copies.remove(request)
                self._run(request, step)
        while step.budget >= 1 and len(self._waiting):
            request = self._waiting.peek()
            admission = self._admit(request, step)
            if admission is Admission.NO_ROOM:
                return
            self._waiting.pop()
            if admission is Admission.COMPUTES:
                self._run(request, step)
            else:
                self._awaiting_copies.append(request)

    def _admit(self, request: SimulatedRequest, step: _Step) -> Admission:
        if not self._borrowing.may_admit(request):
            return Admission.WAITS  # its donors are on their way
        was_waiting = request.state is State.WAITING
        admission = self.device.admit(request, step.most(request))
        if was_waiting and admission in (Admission.COMPUTES, Admission.LOADS):
            recomputed = self._borrowing.note_admitted(request)
            if recomputed:
                step.prompt_tokens += recomputed
                step.seconds += self._prefill_s(request.computed_tokens - recomputed, recomputed)
        return admission

    def _run(self, request: SimulatedRequest, step: _Step) -> None:
        self._running.append(request)
        has_room = self._compute(request, step)
        assert has_room, "a request is admitted with room for what it computes first"

    def _compute(self, request: SimulatedRequest, step: _Step) -> bool:
        """Compute the tokens that the step allows; return False if too few blocks are free."""
        if request.is_decoding:
            if not self.device.compute(request, request.tokens):
                return False
            step.decodes = True
            step.computed.append(request)
            return True
        chunk = step.most(request)
        if chunk < 1:
            return True
        cached = request.computed_tokens
        if not self.device.compute(request, cached + chunk):
            return False
        step.seconds += self._prefill_s(cached, chunk)
        step.prompt_tokens += chunk
        step.budget -= chunk
        step.computed.append(request)
        return True

    def _pass_time(self, step: _Step) -> None:
        if step.computed:
            step.seconds += self._decode_s if step.decodes else 0.0
            self.device.clock.run_model(step.seconds)
        elif (end_s := self.device.next_copy_end_s()) is not None:
            self.device.clock.wait_until(end_s)
        elif self._awaiting_copies:
            # The loaded requests hold all blocks, and each needs some more.
            victim = self._awaiting_copies.pop()
            self.device.preempt(victim)
            self._waiting.prepend(victim)


class _Step:
    """The work of one step. budget: how many prompt tokens the step may still compute."""

    __slots__ = ("budget", "computed", "decodes", "prompt_tokens", "seconds")

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.computed: list[SimulatedRequest] = []
        self.decodes = False
        self.prompt_tokens = 0
        self.seconds = 0.0

    def most(self, request: SimulatedRequest) -> int:
        """How many prompt tokens of the request the step may compute."""
        left = request.tokens - request.computed_tokens
        return left if self.budget >= left else int(self.budget)
