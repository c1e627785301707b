"""How documents are to be kept from eviction, and what is kept: plain values that cross processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ragcache_engine.knowledge.tier import Tier

LONGEST_KEPT_S = 100 * 365 * 86_400
"""Documents are kept for so many seconds at most, or until they are released."""

KEPT_TIERS = (Tier.HOST, Tier.DISK)
"""Where documents can be kept. Device memory is not for keeping: running requests need it."""


@dataclass(frozen=True, slots=True)
class KeepOrder:
    """How documents are to be kept.

    tier: one of KEPT_TIERS. until_s: when that ends, in seconds since 1970; None: never.
    most: which part of the tier may be kept in all, 0 to 1. share: which part of that the documents'
      owner may keep. owner: whose share it is; None: nobody's, and no share bounds it but `most`.
    name: what tells its sets from other sets of the same documents; empty: nothing.
    """

    tier: Tier
    until_s: float | None = None
    most: float = 1.0
    share: float = 1.0
    owner: str | None = None
    name: str = ""

    def set_of(self, document_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the documents as the set by which they are known when they are kept."""
        names = tuple(document_ids)
        return (*names, self.name) if self.name and self.name not in names else names

    def is_like(self, other: KeepOrder) -> bool:
        """Return whether both keep in one tier, for one owner."""
        return (self.tier, self.owner) == (other.tier, other.owner)

    def to_list(self) -> list[Any]:
        """Return the order as plain values."""
        return [self.tier.value, self.until_s, self.most, self.share, self.owner, self.name]

    @classmethod
    def from_list(cls, said: Sequence[Any]) -> Self:
        """Make an order from what to_list() returned."""
        tier, *rest = said
        return cls(Tier(tier), *rest)


class Kept(NamedTuple):
    """Documents that are kept together.

    documents: their ids, in the order in which they stand in prompts. tier: the name of the tier.
    until_s: as in KeepOrder. tokens: of the blocks that are kept, the text before the documents among
      them. held_tokens: those of them that are in the tier now.
    """

    documents: tuple[str, ...]
    tenant: str | None
    tier: str
    until_s: float | None
    tokens: int
    held_tokens: int


class KeptAnswer(NamedTuple):
    """What a scheduler answers to who asked to keep. no_room: as in NoRoomToKeep, if that was raised.

    has_failed: whether nothing was done, by a defect of ours.
    """

    kept: Sequence[Kept] = ()
    no_room: tuple[int, int] | None = None
    has_failed: bool = False


class NoRoomToKeep(Exception):
    """Documents would take more of a tier than may be kept there; nothing was changed.

    needed_tokens: what they take beyond what is kept already, of the tier or of their owner's share.
    free_tokens: how much more may be kept of that.
    """

    def __init__(self, tier: Tier, needed_tokens: int, free_tokens: int) -> None:
        super().__init__(f"{needed_tokens} tokens are to be kept in {tier}, {free_tokens} may be")
        self.tier, self.needed_tokens, self.free_tokens = tier, needed_tokens, free_tokens
