"""Decides what a prompt borrows now, and whether it computes fewer tokens if it is answered exactly.

With missing_donors="later" no donor is computed for a prompt that costs it more than its document does.
The document is computed where it stands, and its donor in idle time. What no donor is held for is
answered exactly. So is a prompt whose exact tensors are cached: with or without donors, nothing is
quicker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol

from ragcache_engine.tiers.borrowing.donor import Donor
from ragcache_engine.tiers.borrowing.plan import MADE_DONORS, BorrowPlan, Lenders, WhyExact
from ragcache_engine.tiers.node_record import Key

MOST_IN_PLACE = 512
"""Behind more tokens of documents that are computed in their place, nothing more is borrowed: what stands
before a borrowed document is computed in one step, which all running answers wait for."""


class PlanWith(Protocol):
    """Plans a prompt with these lenders, as `plan_borrowing` does."""

    def __call__(self, *, lenders: Lenders) -> BorrowPlan | WhyExact: ...


def plan_what_is_held(
    plan_with: PlanWith,
    keys_of: Callable[[Donor], Sequence[Key]],
    prompt: Sequence[Key],
    prompt_tokens: int,
    *,
    block_tokens: int,
    holds: Callable[[Key], bool],
) -> BorrowPlan | WhyExact:
    """Plan what a prompt borrows from donors that are held, or say why it is answered exactly.

    plan_with: plans the prompt. keys_of: returns the keys of a donor's whole blocks. The others: as in
    `reason_to_answer_exactly`.
    """
    plan = plan_with(lenders=MADE_DONORS)
    if not isinstance(plan, BorrowPlan):
        return plan
    costly: set[int] = set()
    first = plan.exact_documents
    in_place = 0  # tokens of documents behind the first that is lent
    for place, donor in zip(plan.lent[1:], plan.donors[1:], strict=True):
        missing = sum(not holds(key) for key in keys_of(donor)) * block_tokens
        span = plan.documents[place]
        tokens = span.end - span.start
        # A document is seldom full at the ends of its blocks.
        if in_place > MOST_IN_PLACE or missing > tokens + 2 * block_tokens:
            costly.add(place)
            if first == place:
                first += 1
            else:
                in_place += tokens
    if costly:
        plan = plan_with(lenders=Lenders(first, computed=costly))
        if not isinstance(plan, BorrowPlan):
            return WhyExact.NOT_PREPARED
    why_exact = reason_to_answer_exactly(
        plan,
        [keys_of(donor) for donor in plan.donors],
        prompt,
        prompt_tokens,
        block_tokens=block_tokens,
        holds=holds,
    )
    if why_exact is None:
        return plan
    return WhyExact.NOT_PREPARED if costly else why_exact


def reason_to_answer_exactly(
    plan: BorrowPlan,
    donors: Iterable[Sequence[Key]],
    prompt: Sequence[Key],
    prompt_tokens: int,
    *,
    block_tokens: int,
    holds: Callable[[Key], bool],
) -> WhyExact | None:
    """Return why an exact answer computes no more tokens now than this plan does, or None if it does.

    donors: for each donor of the plan, the keys of its whole blocks. prompt: those of the whole prompt,
    as if it borrowed nothing. holds: returns whether any tier has a block; loading one counts as nothing.
    """
    missing = {key for keys in donors for key in keys if not holds(key)}
    borrowing = len(missing) * block_tokens + len(plan.recomputed) + prompt_tokens - plan.end
    cached = sum(1 for _ in takewhile(holds, prompt)) * block_tokens
    if borrowing < max(1, prompt_tokens - cached):
        return None
    return WhyExact.NOT_PREPARED if missing else WhyExact.CACHED
