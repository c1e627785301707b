"""What a request on the simulated device borrows: its plan, and the prompts it borrows from."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_engine.tiers.borrowing.plan import BorrowPlan
from ragcache_engine.tiers.node_record import Key
from ragcache_engine.tiers.prompts import Prompt


@dataclass(frozen=True, slots=True)
class DonorPrompt:
    """A donor as the cache manager sees it. keys: of all its whole blocks."""

    prompt: Prompt
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Loan:
    """What a request borrows. donors: one for each donor of the plan, in their order."""

    plan: BorrowPlan
    donors: tuple[DonorPrompt, ...]
