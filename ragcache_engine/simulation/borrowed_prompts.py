"""Describes prompts that borrow, and their donors, as the simulated device sees them."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_engine.simulation.block_keys import KeyChain
from ragcache_engine.simulation.loans import DonorPrompt
from ragcache_engine.simulation.request import describe_with_keys
from ragcache_engine.tiers.borrowing.donor import Donor
from ragcache_engine.tiers.borrowing.plan import BorrowPlan


def describe_donor(
    donor: Donor, *, tenant: str | None, block_tokens: int, has_disk: bool
) -> DonorPrompt:
    """Describe a donor of a plan for the cache manager."""
    prompt, chain = describe_with_keys(
        donor.token_ids,
        donor.segments,
        prompt_tokens=len(donor.token_ids),
        tenant=tenant,
        block_tokens=block_tokens,
        depth=None,
        has_disk=has_disk,
    )
    return DonorPrompt(prompt, tuple(chain.keys))


def split_keys(
    token_ids: Sequence[int], plan: BorrowPlan, *, tenant: str | None, block_tokens: int
) -> KeyChain:
    """Return the keys of a prompt that borrows; from the first inexact block on, nobody else has them.

    Only a prompt that borrows the same in the same way finds those blocks, as with vLLM.
    """
    chain = KeyChain(block_tokens, tenant)
    exact_tokens = plan.exact_blocks * block_tokens
    chain.extend(token_ids[:exact_tokens])
    chain.split(plan.digest)
    chain.extend(token_ids[exact_tokens:])
    return chain
