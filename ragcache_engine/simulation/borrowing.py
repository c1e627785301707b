"""Lets requests on the simulated device borrow: the same plans and the same waiting as with vLLM.

A request that borrows waits until all its donors are on the device. Donors that are missing become
requests of their own, in front of the queue. It mirrors `backends/vllm/borrowing/scheduling.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import count

from ragcache_engine.simulation.block_pool import Block
from ragcache_engine.simulation.device import SimulatedDevice
from ragcache_engine.simulation.request import SimulatedRequest, State
from ragcache_engine.tiers.borrowing.borrowers import Borrower, Borrowers, MissingDonor
from ragcache_engine.tiers.provenance import ReuseReport, report_borrowing

UNBOUNDED = 1 << 40
"""More tokens than any step computes, for a scheduler whose steps have no limit."""


class SimulatedBorrowing:
    """Decides, step by step, which requests get their borrowed tensors.

    step_tokens: how many tokens one step may recompute; one request may exceed it.
    """

    def __init__(self, device: SimulatedDevice, step_tokens: float) -> None:
        self._device = device
        self._step_tokens = step_tokens
        self._borrowers: Borrowers[Block] = Borrowers(
            device.pool.find, lambda block: block.users > 0
        )
        self._numbers = count()
        self._asked: dict[str, list[SimulatedRequest]] = {}  # by name, the donors it asked for
        self._ready: dict[str, Borrower[Block]] = {}
        self._held_back: AbstractSet[str] = frozenset()

    def add(self, request: SimulatedRequest) -> None:
        """Let a request wait for its donors, if it borrows."""
        if request.loan is not None:
            plan = request.loan.plan
            keys = [donor.keys for donor in request.loan.donors]
            exact = request.keys[: plan.exact_blocks]
            self._borrowers.add(Borrower(request.name, plan, keys, exact))

    def begin_step(
        self, waiting: Iterable[SimulatedRequest], running: Iterable[SimulatedRequest]
    ) -> list[SimulatedRequest]:
        """Hold the donors of requests that may be admitted now; return requests for missing donors.

        Their order is that in which they are to be computed. waiting: all requests that wait, for
        memory or for copies into it, in their order. running: those that are computed.
        """
        self._held_back = frozenset()
        if not len(self._borrowers):
            return []
        block_tokens = self._device.sizes.block_tokens
        waiting = list(waiting)
        by_name = {each.name: each for each in waiting if each.state is State.WAITING}
        loading = [each for each in waiting if each.is_donor and each.name not in by_name]
        ready, missing, self._held_back = self._borrowers.plan_step(
            [each.name for each in by_name.values() if not each.is_donor],
            blocks_of=lambda name: -(-(by_name[name].tokens + 1) // block_tokens),
            free_blocks=self._device.pool.free_count + sum(len(each.blocks) for each in loading),
            running=sum(not each.is_donor for each in running),
            most_recomputed=int(min(self._step_tokens, UNBOUNDED)),
            keep=self._device.manager.keep,
        )
        for borrower in ready:
            for blocks in borrower.lent:
                self._device.pool.use(blocks)
            self._ready[borrower.name] = borrower
        return [self._ask_for(donor, by_name[donor.borrower.name]) for donor in missing]

    def may_admit(self, request: SimulatedRequest) -> bool:
        """Return whether a request may be admitted in this step: it takes nothing from borrowers, or has
        all its donors."""
        if request.loan is not None:
            return request.name in self._ready
        return request.name not in self._held_back

    def note_admitted(self, request: SimulatedRequest) -> int:
        """Note that a request has its memory; return how many tokens are recomputed for it."""
        manager = self._device.manager
        if request.is_donor:
            cached, sources = manager.cached_tokens(request.name), manager.sources(request.name)
            self._borrowers.note_found(request.name, cached, sources)
        borrower = self._ready.get(request.name)
        if borrower is None:
            return 0
        shared = min(request.found_tokens, borrower.plan.end)
        if borrower.shared_tokens is None:
            borrower.shared_tokens, borrower.found_tokens = shared, request.found_tokens
            # Only those exact tokens count as cached that were there before the request came.
            exact = borrower.exact_tokens(self._device.sizes.block_tokens)
            manager.set_cached_tokens(request.name, exact, borrower.reasons)
        _, recomputed = borrower.plan.after(shared)
        return len(recomputed)

    def end_step(self, *, is_empty: bool) -> None:
        """Release the donors that this step has copied from, or could not yet.

        is_empty: whether the step computed nothing.
        """
        ready, self._ready = self._ready, {}
        self._borrowers.end_step(has_held=bool(ready), is_empty=is_empty)
        for borrower in ready.values():
            for blocks in borrower.lent:
                self._device.pool.release(blocks)
            borrower.lent = []

    def finish(self, request: SimulatedRequest) -> ReuseReport | None:
        """Note that a request has ended; return what it reused, if it borrowed."""
        self._borrowers.end_donor(request.name)
        borrower = self._borrowers.remove(request.name)
        if borrower is None:
            return None
        return report_borrowing(
            borrower.plan,
            borrower.found,
            borrower.shared_tokens or 0,
            borrower.prefix,
            borrower.found_tokens,
        )

    def take_unwanted(self, request: SimulatedRequest) -> list[SimulatedRequest]:
        """Return donors for which this request, which has ended, asked, and nobody else waits."""
        return [
            donor
            for donor in self._asked.pop(request.name, ())
            if self._borrowers.is_donor(donor.name) and not self._borrowers.is_wanted(donor.name)
        ]

    def _ask_for(self, missing: MissingDonor[Block], request: SimulatedRequest) -> SimulatedRequest:
        assert request.loan is not None
        name = f"{request.name} donor {next(self._numbers)}"
        self._borrowers.expect(missing, name)
        donor = request.loan.donors[missing.place]
        asked = SimulatedRequest(name, donor.prompt, donor.keys, donor.prompt.tokens, is_donor=True)
        self._asked.setdefault(request.name, []).append(asked)
        return asked
