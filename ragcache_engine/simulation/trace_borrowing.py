"""Makes requests of a trace that borrow every document after the first, each stored alone.

A trace knows no neighbours, so donors are the prompts [system text, document].
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ragcache_engine.simulation.borrowed_prompts import describe_donor, split_keys
from ragcache_engine.simulation.loans import DonorPrompt, Loan
from ragcache_engine.simulation.request import SimulatedRequest
from ragcache_engine.simulation.trace_prompts import MOST_PROMPTS, TracePrompts
from ragcache_engine.simulation.traces import Request
from ragcache_engine.tiers.borrowing.donor import Donor
from ragcache_engine.tiers.borrowing.plan import Room, WhyExact, plan_borrowing

QUESTION = -1
"""The token of every question; no document has it."""
NO_CONTEXT_LIMIT = 1 << 40


class BorrowingPrompts:
    """Makes requests from a trace's prompts.

    ratio: the share of borrowed documents to compute anew. device_blocks: how many blocks the device has.
    """

    def __init__(self, prompts: TracePrompts, ratio: float, device_blocks: int) -> None:
        self._prompts = prompts
        self._ratio = ratio
        self._device_blocks = device_blocks
        self._describe = lru_cache(MOST_PROMPTS)(self._describe_donor)

    def request(self, name: str, documents: Request) -> SimulatedRequest:
        """Return the request for these documents; an exact one where borrowing cannot be."""
        exact = self._prompts.prompt(documents).request(name)
        tokens, segments = self._prompts.write(documents)
        tokens.append(QUESTION)
        plan = plan_borrowing(
            tokens,
            segments,
            Room(self._prompts.block_tokens, NO_CONTEXT_LIMIT, self._device_blocks),
            contexts={},
            ratio=self._ratio,
        )
        if isinstance(plan, WhyExact):
            return exact
        chain = split_keys(tokens, plan, tenant=None, block_tokens=self._prompts.block_tokens)
        return replace(
            exact,
            prompt=exact.prompt.before(plan.exact_blocks),
            keys=tuple(chain.keys),
            loan=Loan(plan, tuple(map(self._describe, plan.donors))),
        )

    def _describe_donor(self, donor: Donor) -> DonorPrompt:
        return describe_donor(
            donor,
            tenant=None,
            block_tokens=self._prompts.block_tokens,
            has_disk=self._prompts.has_disk,
        )
