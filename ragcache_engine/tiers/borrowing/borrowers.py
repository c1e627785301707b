"""Keeps the requests that borrow, and finds out which of them have all their donors on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.plan import BorrowPlan
from ragcache_engine.tiers.node_record import B, Key
from ragcache_engine.tiers.provenance import PromptSources, Reason

MOST_READY = 16
"""So many requests at most get their borrowed tensors in one step."""


@dataclass(slots=True)
class Borrower(Generic[B]):
    """A request that borrows.

    keys: for each donor, the keys of its whole blocks.
    found: for each donor, where its tensors were when the request came: a tier, or None if they had to be
      computed for it. Filled as the donors come.
    blocks: how many blocks of the device its donors take.
    lent: for each donor its blocks on the device, while they are held for this request.
    reasons: for each document whose donor had to be computed, why, as far as that is known.
    prefix: how many tokens of the first donor, which is the request's own beginning, each tier had when
      that donor was asked for; None if the device had them all.
    shared_tokens: how many of its leading tokens were on the device when it was first admitted, exact or
      from an earlier prompt with the same plan; None before.
    """

    name: str
    plan: BorrowPlan
    keys: Sequence[Sequence[Key]]
    found: dict[int, Tier | None] = field(default_factory=dict)
    lent: list[list[B]] = field(default_factory=list)
    reasons: dict[str, Reason] = field(default_factory=dict)
    prefix: Mapping[Tier, int] | None = None
    shared_tokens: int | None = None
    blocks: int = field(init=False)

    def exact_tokens(self, block_tokens: int) -> dict[Tier, int]:
        """Return how many of the request's exact tokens each tier had before the request came."""
        left = self.plan.exact_blocks * block_tokens
        tokens = dict.fromkeys((Tier.DEVICE, Tier.HOST, Tier.DISK), 0)
        had = {Tier.DEVICE: left} if self.prefix is None else self.prefix
        for tier in tokens:
            tokens[tier] = min(left, had.get(tier, 0))
            left -= tokens[tier]
        return tokens

    def __post_init__(self) -> None:
        self.blocks = len({key for keys in self.keys for key in keys})


class MissingDonor(NamedTuple, Generic[B]):
    """A donor that is to be computed or loaded. place: its place in the plan."""

    borrower: Borrower[B]
    place: int


class Borrowers(Generic[B]):
    """All requests that borrow, in the order in which they came.

    cached_block: returns a device block that holds this now; None if there is none.
    device_blocks: how many blocks the device has.
    """

    def __init__(self, cached_block: Callable[[Key], B | None], device_blocks: int) -> None:
        self._cached_block = cached_block
        self._device_blocks = device_blocks
        self._borrowers: dict[str, Borrower[B]] = {}
        self._coming: dict[Key, str] = {}  # a donor's last key -> the request that computes it
        self._places: dict[str, Key] = {}  # the other way round
        self._held_in_vain = False

    def __len__(self) -> int:
        """Return how many requests borrow."""
        return len(self._borrowers)

    def get(self, name: str) -> Borrower[B] | None:
        """Return the request of this name if it borrows."""
        return self._borrowers.get(name)

    def add(self, borrower: Borrower[B]) -> None:
        """Keep a request that begins to wait for its donors."""
        self._borrowers[borrower.name] = borrower

    def remove(self, name: str) -> Borrower[B] | None:
        """Forget a request that has ended, and return it."""
        return self._borrowers.pop(name, None)

    # -- each step ---------------------------------------------------------------------------------

    def find_ready(
        self,
        is_waiting: Callable[[str], bool],
        blocks_of: Callable[[str], int],
        most_recomputed: int,
        keep: Callable[[str], None],
    ) -> tuple[list[Borrower[B]], list[MissingDonor[B]]]:
        """Return the waiting requests that have all their donors, and the donors that others lack.

        Donors are fetched for as many requests as fit into device memory with their donors, the oldest
        first: more would evict each other's donors for ever. None is ready after a step in vain; see
        `end_step`.
        is_waiting: returns whether a request waits for admission. blocks_of: returns how many blocks a
          request needs. most_recomputed: how many tokens one step may recompute; one request may exceed
          it. keep: keeps the donors of a request from eviction; called for all that donors are fetched
          for, as a donor is computed in front of the queue and would evict one that has just come.
        """
        ready: list[Borrower[B]] = []
        missing: list[MissingDonor[B]] = []
        asked: set[Key] = set()
        room, recomputed, has_kept = self._device_blocks, 0, False
        for borrower in self._borrowers.values():
            if not is_waiting(borrower.name):
                continue
            room -= borrower.blocks + blocks_of(borrower.name)
            # Not by what is ready or missing: while the donors of the first are on their way, neither is.
            if room < 0 and has_kept:
                break
            keep(borrower.name)
            has_kept = True
            absent = [
                place for place in range(len(borrower.keys)) if not self._find(borrower, place)
            ]
            if absent:
                for place in absent:
                    last = borrower.keys[place][-1]
                    if last not in self._coming and last not in asked:
                        asked.add(last)
                        missing.append(MissingDonor(borrower, place))
            elif len(ready) < MOST_READY:
                recomputed += len(borrower.plan.recomputed)
                if not ready or recomputed <= most_recomputed:
                    borrower.lent = [self._blocks(keys) for keys in borrower.keys]
                    ready.append(borrower)
        if self._held_in_vain:
            for borrower in ready:
                borrower.lent = []
            ready = []
        return ready, missing

    def end_step(self, *, has_held: bool, is_empty: bool) -> None:
        """Note that a step has been planned. has_held: whether donors were held for it. is_empty: whether
        it computes nothing.

        Then the held donors may have taken the memory of a request that waits in front, so that the next
        step has to do without any.
        """
        self._held_in_vain = has_held and is_empty

    def _find(self, borrower: Borrower[B], place: int) -> bool:
        keys = borrower.keys[place]
        if any(self._cached_block(key) is None for key in reversed(keys)):
            return False
        borrower.found.setdefault(place, Tier.DEVICE)
        return True

    def _blocks(self, keys: Iterable[Key]) -> list[B]:
        found = [self._cached_block(key) for key in keys]
        return [block for block in found if block is not None]

    # -- donors on their way -----------------------------------------------------------------------

    def expect(self, donor: MissingDonor[B], request: str) -> None:
        """Note that a request computes or loads a donor."""
        last = donor.borrower.keys[donor.place][-1]
        self._coming[last] = request
        self._places[request] = last

    def is_donor(self, request: str) -> bool:
        """Return whether a request only computes or loads a donor."""
        return request in self._places

    def is_wanted(self, request: str) -> bool:
        """Return whether a request waits for the donor that this request computes or loads."""
        last = self._places.get(request)
        return any(
            keys[-1] == last for borrower in self._borrowers.values() for keys in borrower.keys
        )

    def note_found(
        self, request: str, cached: Mapping[Tier, int], sources: PromptSources | None = None
    ) -> None:
        """Note where the blocks of a donor were found, for all that wait for it.

        cached: the donor's cached tokens by tier. sources: where its prompt came from.
        """
        last = self._places.get(request)
        if last is None:
            return
        for borrower in self._borrowers.values():
            for place, keys in enumerate(borrower.keys):
                if keys[-1] == last and place not in borrower.found:
                    borrower.found[place] = _tier_of(cached, borrower.plan, place)
                    reasons = sources.reasons if sources else {}
                    if place == 0:
                        borrower.prefix = dict(cached)
                        borrower.reasons |= reasons
                    elif (lent := borrower.plan.lent_document(place).document) in reasons:
                        borrower.reasons[lent] = reasons[lent]

    def end_donor(self, request: str) -> None:
        """Note that a donor's request has ended, with or without its blocks."""
        last = self._places.pop(request, None)
        if last is not None and self._coming.get(last) == request:
            del self._coming[last]


def _tier_of(cached: Mapping[Tier, int], plan: BorrowPlan, place: int) -> Tier | None:
    """Return the slowest tier that a donor's tokens came from; None if its document was computed."""
    donor, span = plan.donors[place], plan.lent_document(place)
    end_in_donor = min(donor.start + span.end - span.start, len(donor.token_ids) - 1)
    if sum(cached.values()) < end_in_donor:
        return None
    slowest = Tier.DEVICE
    for tier in (Tier.HOST, Tier.DISK):
        if cached.get(tier):
            slowest = tier
    return slowest
