"""Keeps the requests that wait or run, and the nodes that each of them pins."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.node_record import B, Key
from ragcache_engine.tiers.prompts import Prompt
from ragcache_engine.tiers.provenance import PromptSources

MOST_UNADOPTED = 64
"""How many ended guesses to keep for adoption; the engine has far fewer of them."""


@dataclass(slots=True)
class TrackedRequest:
    """A request that waits or runs.

    nodes: those of its prompt, pinned as long as they are listed here.
    device_blocks: leading blocks of the prompt that the device had when the request was last planned.
    load_blocks: how many of the next blocks to load from slower tiers.
    passed_over_blocks: how many blocks could be loaded, but are computed because that is quicker.
    from_disk: keys of blocks that were read from disk for this request, or fetched from the shared store.
    from_shared: those of them that were fetched. shared_tokens: how many tokens of the prompt came so.
    shared_blocks: how many leading blocks of the prompt the shared store can fill up, as far as is known.
    asked_shared: where in the prompt the documents end whose last block the store was asked for.
    awaits_answers: whether the store has not answered yet, since asked_s. has_asked: whether it was to be
    asked already.
    cached_tokens: cached prompt tokens by tier, as of the request's first admission; None before.
    load_asked_s: when the request began to wait for its load; None if it does not wait for one.
    awaits_copies: whether some of its blocks were on their way to the host at its last try.
    loads_alone: whether the model has computed nothing else since then.
    loaded_bytes: how many bytes it has loaded since then.
    scheduling_s: scheduling time that RAGCache added to this request.
    is_planned: whether the scheduler has tried to admit it.
    is_trial: whether it loads to see if loading has become quick again.
    has_given_up: whether it has waited too long for the disk, and computes what has not come.
    guess: the engine's own id of the request, which `adopted` refers to, as long as nobody has asked for
      the answer; `name` is vLLM's. None for an ordinary request.
    donors: the prompts from which the request borrows; `prompt` then ends where borrowing begins.
    donor_nodes: the nodes of each donor, pinned as long as they are listed here.
    is_donor: whether the request only computes or loads a donor, for others to borrow from.
    is_packed: whether that is a packed one, whose blocks nobody can compute: it loads all that it can.
    stored_blocks: how many of its leading blocks slower tiers may keep; None: all.
    sources: where its prompt came from, as of its first admission; None before.
    is_counted: whether its tokens are in the counters already.
    """

    name: str
    prompt: Prompt
    guess: str | None = None
    nodes: list[Node] = field(default_factory=list)
    is_running: bool = False
    device_blocks: int = 0
    load_blocks: int = 0
    passed_over_blocks: int = 0
    from_disk: set[Key] = field(default_factory=set)
    from_shared: set[Key] = field(default_factory=set)
    shared_tokens: int = 0
    shared_blocks: int = 0
    asked_shared: Sequence[int] = ()
    awaits_answers: bool = False
    asked_s: float | None = None
    has_asked: bool = False
    cached_tokens: dict[Tier, int] | None = None
    load_asked_s: float | None = None
    awaits_copies: bool = False
    loads_alone: bool = False
    loaded_bytes: int = 0
    scheduling_s: float = 0.0
    is_planned: bool = False
    is_trial: bool = False
    has_given_up: bool = False
    sources: PromptSources | None = None
    donors: Sequence[Prompt] = ()
    in_place: Sequence[str] = ()
    donor_nodes: list[list[Node]] = field(default_factory=list)
    is_donor: bool = False
    is_packed: bool = False
    stored_blocks: int | None = None
    is_counted: bool = False

    def paths(self) -> Iterator[list[Node]]:
        """Yield the lists of nodes that the request pins: its own, and those of its donors."""
        yield self.nodes
        yield from self.donor_nodes


class RequestTable(Generic[B]):
    """All requests by name, and their pins.

    admitting: the name of the request that the scheduler tries to admit; `unpin_waiting` spares it.
    """

    def __init__(self, index: BlockIndex[B]) -> None:
        self._index = index
        self._requests: dict[str, TrackedRequest] = {}
        self._pinned: dict[str, TrackedRequest] = {}
        self._guesses: OrderedDict[str, TrackedRequest] = OrderedDict()
        self.get = self._requests.get
        """The request of this name; None if there is none."""
        self.admitting: str | None = None

    def __iter__(self) -> Iterator[TrackedRequest]:
        return iter(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, name: str) -> TrackedRequest:
        return self._requests[name]

    def add(self, request: TrackedRequest) -> None:
        """Track a request from now on."""
        self._requests[request.name] = request

    def pop(self, name: str) -> TrackedRequest | None:
        """Stop tracking a request and return it, with its pins; None if there is none of this name."""
        return self._requests.pop(name, None)

    def is_any_other_running(self, request: TrackedRequest) -> bool:
        """Return whether the model computes other requests."""
        return any(other.is_running and other is not request for other in self)

    # -- pins --------------------------------------------------------------------------------------

    @property
    def pinned(self) -> int:
        """How many requests pin their nodes."""
        return len(self._pinned)

    def pin(self, request: TrackedRequest) -> bool:
        """Find and pin the nodes of the request's prompt; return False if there was nothing to pin."""
        if request.name in self._pinned or not (request.prompt.cuts or request.donors):
            return False
        self._pinned[request.name] = request
        request.nodes = self._pin_path(request.prompt)
        for donor in request.donors:
            request.donor_nodes.append(self._pin_path(donor))
        return True

    def _pin_path(self, prompt: Prompt) -> list[Node]:
        path = self._index.path(prompt.keys, prompt.cuts, prompt.tenant)
        tree = self._index.tree
        uppers: dict[Node, list[Node]] = {}
        for upper, lower in path.splits:
            uppers.setdefault(lower, []).append(upper)
        # A request that has pinned a node keeps all parts of it. One pass, however many were cut.
        for pinned in [nodes for other in self._pinned.values() for nodes in other.paths()]:
            if uppers and not uppers.keys().isdisjoint(pinned):
                tree.pin([upper for node in pinned for upper in uppers.get(node, ())])
                pinned[:] = [part for node in pinned for part in (*uppers.get(node, ()), node)]
        tree.pin(path.nodes)
        for _, lower in path.splits:
            tree.prune(lower)
        return path.nodes

    def unpin(self, request: TrackedRequest) -> None:
        """Let the request's nodes be evicted, as far as no other request pins them."""
        if self._pinned.pop(request.name, None):
            paths = list(request.paths())
            request.nodes, request.donor_nodes = [], []
            for nodes in paths:
                self._index.tree.unpin(nodes)

    def unpin_waiting(self) -> bool:
        """Unpin the nodes of all requests that only wait; return whether there were any."""
        waiting = [
            request
            for request in self._pinned.values()
            if not request.is_running and request.name != self.admitting
        ]
        for request in waiting:
            self.unpin(request)
        return bool(waiting)

    def withdraw(self, request: TrackedRequest, block: int) -> None:
        """Keep nothing of a request's prompt from this block on, while the request computes with it."""
        request.prompt = request.prompt.before(block)
        request.load_blocks = min(request.load_blocks, max(0, block - request.device_blocks))
        at = kept = 0
        while kept < len(request.nodes) and at < block:
            at += request.nodes[kept].blocks
            kept += 1
        unpinned, request.nodes = request.nodes[kept:], request.nodes[:kept]
        if not request.nodes and not request.donor_nodes:
            self._pinned.pop(request.name, None)
        self._index.tree.unpin(unpinned)

    def withdraw_donors(self, request: TrackedRequest) -> None:
        """Keep nothing of a request's donors, while the request computes with their tensors."""
        request.donors = [donor.before(0) for donor in request.donors]
        paths, request.donor_nodes = request.donor_nodes, []
        if not request.nodes:
            self._pinned.pop(request.name, None)
        for nodes in paths:
            self._index.tree.unpin(nodes)

    # -- guesses -----------------------------------------------------------------------------------

    def keep_guess(self, guess: str, request: TrackedRequest) -> None:
        """Remember a guess that has ended with its answer, until it is adopted."""
        self._guesses[guess] = request
        if len(self._guesses) > MOST_UNADOPTED:
            self._guesses.popitem(last=False)

    def with_guesses(self) -> Iterator[TrackedRequest]:
        """Yield all requests, and the guesses that ended and may still be adopted."""
        yield from self._requests.values()
        yield from self._guesses.values()

    def adopt_guess(self, guess: str) -> TrackedRequest | None:
        """Make a guess an ordinary request. If it has ended, return it, to record its use now."""
        request = self._guesses.pop(guess, None)
        if request is None:
            for running in self:
                if running.guess == guess:
                    running.guess = None
            return None
        request.guess = None
        return request

    # -- checking ----------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Raise AssertionError if a request is tracked or pins nodes. For tests."""
        assert not self._requests
        assert not self._pinned
        assert not any(node.pins for node in self._index.nodes())
