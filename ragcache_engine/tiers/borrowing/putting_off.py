"""Decides whether a prompt computes fewer tokens if it borrows now, or if it waits for its donors.

A donor that is missing has to be computed first, which may cost more than the exact answer. With
missing_donors="later" such a prompt is answered exactly, and its donors are computed in idle time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from ragcache_engine.tiers.borrowing.plan import BorrowPlan
from ragcache_engine.tiers.node_record import Key


def computes_more_than_exact(
    plan: BorrowPlan,
    donors: Iterable[Sequence[Key]],
    prompt: Sequence[Key],
    prompt_tokens: int,
    *,
    block_tokens: int,
    holds: Callable[[Key], bool],
) -> bool:
    """Return whether borrowing by this plan computes at least as many tokens now as no borrowing.

    donors: for each donor of the plan, the keys of its whole blocks. prompt: those of the whole prompt,
    as if it borrowed nothing. holds: returns whether any tier has a block; loading one counts as nothing.
    """
    missing = {key for keys in donors for key in keys if not holds(key)}
    borrowing = len(missing) * block_tokens + len(plan.recomputed) + prompt_tokens - plan.end
    cached = sum(1 for _ in takewhile(holds, prompt)) * block_tokens
    return borrowing >= max(1, prompt_tokens - cached)
