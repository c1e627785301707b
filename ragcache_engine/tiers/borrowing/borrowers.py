"""Keeps the requests that borrow, and finds out which of them have all their donors on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, NamedTuple

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.plan import BorrowPlan
from ragcache_engine.tiers.node_record import B, Key
from ragcache_engine.tiers.provenance import PromptSources, Reason

MOST_READY = 16
"""So many requests at most wait for donors, or get their borrowed tensors, in one step. The others cost
the step no look at their donors, however many wait."""


@dataclass(slots=True)
class Borrower(Generic[B]):
    """A request that borrows.

    keys: for each donor, the keys of its whole blocks.
    exact_keys: the keys of the request's own blocks before the first that is not exact.
    found: for each donor, where its tensors were when the request came: a tier, or None if they had to be
      computed for it. Filled as the donors come.
    needed_keys: the keys of all blocks that its donors and its exact beginning take.
    lent: for each donor its blocks on the device, while they are held for this request.
    reasons: for each document whose donor had to be computed, why, as far as that is known.
    prefix: how many tokens of the first donor, which is the request's own beginning, each tier had when
      that donor was asked for; None if the device had them all.
    shared_tokens: how many of its leading tokens were on the device when it was first admitted, exact or
      from an earlier prompt with the same plan, up to the plan's end; None before.
    found_tokens: the same, also behind the plan's end.
    """

    name: str
    plan: BorrowPlan
    keys: Sequence[Sequence[Key]]
    exact_keys: Sequence[Key]
    found: dict[int, Tier | None] = field(default_factory=dict)
    lent: list[list[B]] = field(default_factory=list)
    reasons: dict[str, Reason] = field(default_factory=dict)
    prefix: Mapping[Tier, int] | None = None
    shared_tokens: int | None = None
    found_tokens: int = 0
    needed_keys: Sequence[Key] = field(init=False)

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
        self.needed_keys = tuple(dict.fromkeys(chain(self.exact_keys, *self.keys)))


class MissingDonor(NamedTuple, Generic[B]):
    """A donor that is to be computed or loaded. place: its place in the plan."""

    borrower: Borrower[B]
    place: int

    @property
    def last_key(self) -> Key:
        """The key of its last block, which stands for all of it."""
        return self.borrower.keys[self.place][-1]


class NextStep(NamedTuple, Generic[B]):
    """Who of the waiting requests may be admitted in the next step.

    ready: borrowers that have all their donors. missing: donors that others lack, to be asked for now.
    held_back: the names of those that must not be admitted: all other borrowers, and requests behind
      them that would take their memory.
    """

    ready: Sequence[Borrower[B]] = ()
    missing: Sequence[MissingDonor[B]] = ()
    held_back: AbstractSet[str] = frozenset()


class Borrowers(Generic[B]):
    """All requests that borrow.

    cached_block: returns a device block that holds this now; None if there is none.
    is_used: returns whether a request computes with a block, so that it is not a free one.
    """

    def __init__(
        self, cached_block: Callable[[Key], B | None], is_used: Callable[[B], bool]
    ) -> None:
        self._cached_block = cached_block
        self._is_used = is_used
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

    def plan_step(
        self,
        waiting: Iterable[str],
        *,
        blocks_of: Callable[[str], int],
        free_blocks: int,
        running: int,
        most_recomputed: int,
        keep: Callable[[str], None],
    ) -> NextStep[B]:
        """Decide for which waiting requests donors are fetched, and which may be admitted.

        A borrower is admitted when the device has room for it and its donors at once. Its donors are
        fetched when there is that room, and it is left to the borrower until then: donors of a request
        that cannot be admitted would be evicted and fetched again. The first one without room is waited
        for, as vLLM waits for the first request that does not fit. None is ready after a step in vain;
        see `end_step`.
        waiting: the names of the requests without memory, in their order; none that only fetch a donor.
        blocks_of: returns how many blocks a request needs. free_blocks: blocks that no request computes
          with, except those that fetch donors.
        running: how many requests are computed. Each answer may take one more block until the donors
          have come.
        most_recomputed: how many tokens one step may recompute; one request may exceed it. keep: keeps
          the donors of a request from eviction, as far as that is possible.
        """
        ready: list[Borrower[B]] = []
        missing: dict[Key, MissingDonor[B]] = {}
        held_back: set[str] = set()
        room, recomputed, kept = free_blocks, 0, 0
        is_first, has_room = True, True
        for name in waiting:
            borrower = self._borrowers.get(name)
            if borrower is None:
                needed = blocks_of(name)
                if needed > room and (kept or not has_room):
                    held_back.add(name)
                else:
                    room -= needed
            elif not has_room or kept == MOST_READY:
                held_back.add(name)
            else:
                blocks, absent = self._look_at_donors(borrower)
                donors = len(borrower.needed_keys) - len(borrower.exact_keys)
                needed = blocks_of(name) + donors - sum(map(self._is_used, blocks.values()))
                has_room = needed + (running if absent else 0) <= room or (is_first and not running)
                room -= needed
                if has_room:
                    keep(name)
                    kept += 1
                    for place in absent:
                        donor = MissingDonor(borrower, place)
                        if donor.last_key not in self._coming:
                            missing.setdefault(donor.last_key, donor)
                tokens = len(borrower.plan.recomputed)
                is_too_much = bool(ready) and recomputed + tokens > most_recomputed
                if absent or not has_room or is_too_much or self._held_in_vain:
                    held_back.add(name)
                else:
                    recomputed += tokens
                    borrower.lent = [[blocks[key] for key in keys] for keys in borrower.keys]
                    ready.append(borrower)
            is_first = False
        return NextStep(ready, list(missing.values()), held_back)

    def end_step(self, *, has_held: bool, is_empty: bool) -> None:
        """Note that a step has been planned. has_held: whether donors were held for it. is_empty: whether
        it computes nothing.

        Then the held donors may have taken the memory of a request that waits in front, so that the next
        step has to do without any.
        """
        self._held_in_vain = has_held and is_empty

    def _look_at_donors(self, borrower: Borrower[B]) -> tuple[dict[Key, B], list[int]]:
        """Return the needed blocks that are on the device, and the places of donors that are not all
        there; note the other donors as found."""
        found = {key: self._cached_block(key) for key in borrower.needed_keys}
        blocks = {key: block for key, block in found.items() if block is not None}
        absent = []
        for place, keys in enumerate(borrower.keys):
            if all(map(blocks.__contains__, keys)):
                borrower.found.setdefault(place, Tier.DEVICE)
            else:
                absent.append(place)
        return blocks, absent

    # -- donors on their way -----------------------------------------------------------------------

    def expect(self, donor: MissingDonor[B], request: str) -> None:
        """Note that a request computes or loads a donor."""
        self._coming[donor.last_key] = request
        self._places[request] = donor.last_key

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

        cached: the donor's cached tokens by tier. sources: where its prompt came from. A packed donor
        that is made was where the one was that it is made from.
        """
        last, made = self._places.get(request), self._borrowers.get(request)
        if last is None:
            return
        reasons: Mapping[str, Reason] = sources.reasons if sources else {}
        if made:
            reasons = made.reasons
        for borrower in self._borrowers.values():
            for place, keys in enumerate(borrower.keys):
                if keys[-1] == last and place not in borrower.found:
                    tier = made.found.get(0) if made else _tier_of(cached, borrower.plan, place)
                    borrower.found[place] = tier
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
    end_in_donor = len(donor.token_ids) - 1
    if donor.packs is None:
        end_in_donor = min(donor.start + span.end - span.start, end_in_donor)
    if sum(cached.values()) < end_in_donor:
        return None
    slowest = Tier.DEVICE
    for tier in (Tier.HOST, Tier.DISK):
        if cached.get(tier):
            slowest = tier
    return slowest
