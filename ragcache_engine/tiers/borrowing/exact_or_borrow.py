"""Decides whether a prompt computes fewer tokens if it borrows now, or if it is answered exactly.

A donor that is missing has to be computed first, which may cost more than the exact answer. With
missing_donors="later" such a prompt is answered exactly, and its donors are computed in idle time.
So is a prompt whose exact tensors are cached: with or without donors, nothing is quicker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from ragcache_engine.tiers.borrowing.plan import BorrowPlan, WhyExact
from ragcache_engine.tiers.node_record import Key


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
