"""The client of a server's registered documents: makes a corpus there hold exactly what is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ragcache_engine.backends.server.connection import Connection
from ragcache_engine.corpora.document import Change, Registered, require_corpus_name
from ragcache_engine.serving.messages import CORPORA

WRITTEN_NUMBER = 20
"""About how many characters a number of a vector takes in JSON."""

UPKEEP_S = 180.0
"""How long the server may take to register or to remove: it forgets what it stored of the documents."""

PUSHED_BYTES = 4 << 20
"""About how many bytes of documents go with one request, so that a lost connection costs little."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of the documents of a corpus, by number."""

    added: int = 0
    changed: int = 0
    same: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class CorpusWarmed:
    """What warming a corpus did, in documents.

    prepared: computed now. cached: computed before. left_out: could not be; the first of them, and why,
    stand in `why`: documents of one prompt each.
    """

    prepared: int = 0
    cached: int = 0
    left_out: int = 0
    why: Sequence[tuple[Sequence[str], str]] = ()


@dataclass(frozen=True, slots=True)
class KeepFor:
    """How to keep documents. tier: "host" or "disk". for_s: how many seconds; None: until released."""

    tier: str = "disk"
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class KeptOfCorpus:
    """Documents of a corpus that are kept together.

    ids: of one document, or of two where documents are stored to be borrowed. tier: where. until: when
    that ends, in seconds since 1970; None: never. tokens: how many are kept, the text before the
    documents among them. held_tokens: those of them that are in the tier now.
    """

    ids: tuple[str, ...]
    tier: str
    until: float | None
    tokens: int
    held_tokens: int


class ServerCorpora:
    """The corpora that a key may register at a server that `ragcache serve` started.

        corpora = ServerCorpora("http://host:8000", api_key="...")
        corpora.push("handbook", [Registered("intro", "All employees have ...")])

    url: where the server listens. api_key: a tenant's key, or an operator's for everybody's corpora.
    Raises InvalidArgument for what is no URL.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._connection = Connection(url, api_key)

    def close(self) -> None:
        """Close the connections to the server."""
        self._connection.end()

    def push(
        self,
        corpus: str,
        documents: Iterable[Registered],
        *,
        keep: bool = False,
        done: Callable[[int, int], None] | None = None,
    ) -> Pushed:
        """Make a corpus hold these documents. Only those are sent that the server lacks.

        keep: whether documents stay that are not among these. done: called with how many were sent of how
        many. Pushing the same again changes nothing, so a push that failed is simply repeated.
        Raises CorpusTooLarge, InvalidArgument, KeyRefused, ServerBusy, ServerUnreachable. Documents
        before the one that is refused are registered, and nothing is removed.
        """
        given = {one.id: one for one in documents}
        known = self.digests(corpus)
        sent = [one for one in given.values() if known.get(one.id) != one.digest]
        counts = dict.fromkeys((change.value for change in Change), 0)
        counts[Change.SAME.value] = len(given) - len(sent)
        reached = 0
        for some in _in_parts(sent):
            said = self._connection.call("PUT", _path(corpus), write_lines(some), UPKEEP_S)
            for name in counts:
                counts[name] += said[name]
            reached += len(some)
            if done:
                done(reached, len(sent))
        gone = [] if keep else [name for name in known if name not in given]
        return Pushed(**counts, removed=self._remove(corpus, gone) if gone else 0)

    def _remove(self, corpus: str, ids: list[str]) -> int:
        told = self._connection.call("POST", f"{_path(corpus)}/remove", {"ids": ids}, UPKEEP_S)
        return int(told["removed"])

    def digests(self, corpus: str) -> dict[str, str]:
        """Return the ids of a corpus's documents, and their digests; see Registered.digest."""
        with closing(self._connection.lines("GET", _path(corpus))) as lines:
            return {said["id"]: said["digest"] for said in lines}

    def warm(
        self,
        corpus: str,
        document_ids: Sequence[str] | None = None,
        *,
        cache_salt: str | None = None,
        keep: KeepFor | None = None,
        done: Callable[[int, int], None] | None = None,
    ) -> CorpusWarmed:
        """Compute documents now, so that the first questions about them are answered sooner.

        They are computed behind the beginning of the latest prompt that had a registered document, so ask
        one question first. A server that reuses documents at any position stores each as it is borrowed;
        any other, for prompts that begin with it.
        document_ids: which documents; None: all. cache_salt: as the prompts have it that are to find
        them. keep: how to keep them from eviction from then on; None: not at all. Those for which there
        is no more room to keep are left out. done: called with how many are done, of how many.
        Raises UnknownTemplate before any question, UnknownDocument, KeyRefused, ServerBusy while others
        are being warmed, ServerUnreachable.
        """
        body: dict[str, Any] = {} if document_ids is None else {"ids": [*document_ids]}
        if cache_salt is not None:
            body["cache_salt"] = cache_salt
        if keep is not None:
            body["keep"] = {"tier": keep.tier, "for_s": keep.for_s}
        told: dict[str, Any] = {}
        with closing(self._connection.lines("POST", f"{_path(corpus)}/warm", body)) as lines:
            for told in lines:
                if done and "of" in told:
                    done(told["done"], told["of"])
        why = tuple((one["documents"], one["why"]) for one in told["why"])
        return CorpusWarmed(told["prepared"], told["cached"], told["left_out"], why)

    def kept(self, corpus: str) -> tuple[KeptOfCorpus, ...]:
        """Return which documents of a corpus are kept.

        Raises CannotKeep, KeyRefused, ServerUnreachable.
        """
        told = self._connection.call("GET", f"{_path(corpus)}/kept")
        return tuple(KeptOfCorpus(tuple(one.pop("ids")), **one) for one in map(dict, told["kept"]))

    def release(self, corpus: str, document_ids: Sequence[str] | None = None) -> int:
        """Keep documents of a corpus no longer; return how many sets that were. None: all.

        Raises as `kept` does.
        """
        body = {} if document_ids is None else {"ids": [*document_ids]}
        told = self._connection.call("POST", f"{_path(corpus)}/release", body, UPKEEP_S)
        return int(told["released"])

    def summaries(self) -> Mapping[str, Mapping[str, int]]:
        """Return what each corpus holds, by its name: `documents`, `size_bytes`, `too_short`."""
        told: Mapping[str, Mapping[str, int]] = self._connection.call("GET", CORPORA)
        return told

    def remove(self, corpus: str) -> int:
        """Remove a corpus, and what is stored of its documents; return how many those were."""
        told = self._connection.call("DELETE", _path(corpus), timeout_s=UPKEEP_S)
        return int(told["removed"])


def _path(corpus: str) -> str:
    return f"{CORPORA}/{require_corpus_name(corpus)}"


def _in_parts(documents: list[Registered]) -> Iterator[list[Registered]]:
    part: list[Registered] = []
    size_bytes = 0
    for one in documents:
        part.append(one)
        numbers = 0 if one.vector is None else len(one.vector)
        size_bytes += len(one.text) + numbers * WRITTEN_NUMBER
        if size_bytes >= PUSHED_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def write_lines(documents: Iterable[Registered]) -> bytes:
    """Write documents as the lines of a body."""
    lines = []
    for one in documents:
        line: dict[str, Any] = {"id": one.id, "text": one.text}
        if one.metadata:
            line["metadata"] = one.metadata
        if one.vector is not None:
            line["vector"] = [float(number) for number in one.vector]
        lines.append(json.dumps(line, default=str).encode() + b"\n")
    return b"".join(lines)
