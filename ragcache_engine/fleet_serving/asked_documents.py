"""What a replica was asked about, so that it can say which documents have left its fast memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from ragcache_engine.fleet_serving.wire import FleetRequest
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot

MOST_ASKED = 20_000
"""So many beginnings of its latest prompts a replica remembers: about 4 MB."""

SETTLED_S = 15.0
"""So long after its last answer a beginning is looked for: copies to host memory take their time."""


@dataclass(slots=True)
class _Asked:
    """document: the one that ends a beginning. at: when it was used last, in seconds."""

    document: str
    at: float


class AskedDocuments:
    """Remembers the beginnings of prompts, those unused longest first. Times are seconds of one clock."""

    def __init__(self, most: int = MOST_ASKED) -> None:
        self._most = most
        self._asked: OrderedDict[bytes, _Asked] = OrderedDict()
        self._running: Counter[bytes] = Counter()
        self._dropped: list[bytes] = []

    def __len__(self) -> int:
        return len(self._asked)

    def begin(self, request: FleetRequest, now: float) -> None:
        """Note that a request has come. Until its end, nothing is said of its documents."""
        self._running.update(key for key, _ in request.documents)
        self._note(request, now)

    def end(self, request: FleetRequest, now: float) -> None:
        """Note that a request has ended, however it did."""
        for key, _ in request.documents:
            self._running[key] -= 1
            if self._running[key] <= 0:
                del self._running[key]
        self._note(request, now)

    def take_gone(self, tree: TreeSnapshot | None, now: float) -> list[bytes]:
        """Return the beginnings that are gone, and forget them.

        These are the ones whose documents a tree does not hold in fast memory, and those for which there
        was no room here: nobody could tell when they go. tree: None if it could not be seen.
        """
        gone = self._dropped
        self._dropped = []
        if tree is not None and tree.age_s is not None:
            gone += self._find_gone(tree, now - SETTLED_S - tree.age_s)
        for key in gone:
            self._asked.pop(key, None)
        return gone

    def _find_gone(self, tree: TreeSnapshot, settled_at: float) -> list[bytes]:
        held = {
            name
            for each in tree.documents
            if each.blocks.device or each.blocks.host
            for name in each.documents
        }
        if tree.other_documents and tree.bloom_filter is None:
            return []  # it lists its largest documents, and says nothing of the others
        bloom_filter = tree.bloom_filter
        gone = []
        for key, asked in self._asked.items():
            if asked.at > settled_at:
                break  # from here on, all are newer
            if key in self._running or asked.document in held:
                continue
            if bloom_filter is None or asked.document not in bloom_filter:
                gone.append(key)
        return gone

    def _note(self, request: FleetRequest, now: float) -> None:
        for key, document in request.documents:
            self._asked[key] = _Asked(document, now)
            self._asked.move_to_end(key)
        while len(self._asked) > self._most:
            self._dropped.append(self._asked.popitem(last=False)[0])
