"""Brings the cache up to date with documents that changed: forgets what is old, computes what is new."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ragcache_engine.anywhere.beginnings import sets_of_each
from ragcache_engine.checks import require_items
from ragcache_engine.errors import (
    BadRequest,
    CannotKeep,
    GenerationFailed,
    InvalidArgument,
    UnknownDocument,
)
from ragcache_engine.prompt import Render
from ragcache_engine.values import DOCUMENTS_HINT, Document
from ragcache_engine.warming.cache_points import is_cache_point
from ragcache_engine.warming.keep import KeptDocuments, KeptTier
from ragcache_engine.warming.plan import LeftOut, Warmed, plan_prefills
from ragcache_engine.warming.prefill import OF_ONE_SET

logger = logging.getLogger(__name__)

UNPREPARED = ""
"""Stands in a record for the digest of a document that a sync was about to forget or compute."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What became of documents since the sync before.

    added, changed, removed: their ids. same: how many are as they were.
    warmed: what was computed of those added and changed; None if nothing was to be computed.
    kept_no_longer: sets of documents that were kept, whose texts changed, and that cannot be kept again;
      of all tenants.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    same: int = 0
    warmed: Warmed | None = None
    kept_no_longer: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    documents: dict[str, str]
    to_keep: list[tuple[tuple[str, ...], str | None, KeptTier, datetime | None]]


_FILE = TypeAdapter(_File)


class SyncRecord:
    """Remembers which documents the last sync saw, by id, and a digest of each text.

    One record belongs to one set of documents that is synced as a whole: what its next sync lacks is
    forgotten. Any thread may use it, one sync at a time.
    path: a file that remembers it for later processes; it holds ids and digests, tenants' names of what
      is to be kept again, and no text. None: it lasts as long as this object.
    to_keep: what a sync ended, and has not kept again yet.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._digests: dict[str, str] = {}
        self.to_keep: list[KeptDocuments] = []
        self.lock = Lock()

    def read(self) -> dict[str, str]:
        """Return the digests by id. Raises InvalidArgument for a file that is no record."""
        if self._path is None:
            return dict(self._digests)
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InvalidArgument(f"the record {self._path} cannot be read: {error}") from error
        try:
            said = _FILE.validate_json(content)
        except ValidationError as error:
            raise InvalidArgument(
                f"{self._path} is no record of a sync: name another file, or remove it, and every "
                f"document counts as new"
            ) from error
        self.to_keep = [KeptDocuments(*one, tokens=0, held_tokens=0) for one in said.to_keep]
        return said.documents

    def write(self, digests: Mapping[str, str]) -> None:
        """Remember these digests. Raises InvalidArgument for a file that cannot be written."""
        if self._path is None:
            self._digests = dict(digests)
            return
        beside = self._path.with_name(f".{self._path.name}.{os.urandom(4).hex()}")
        try:
            try:
                to_keep = [(one.documents, one.tenant, one.tier, one.until) for one in self.to_keep]
                said = _File(documents=dict(digests), to_keep=to_keep)
                beside.write_bytes(_FILE.dump_json(said, indent=0))
                beside.replace(self._path)
            finally:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
        except OSError as error:
            raise InvalidArgument(
                f"the record {self._path} cannot be written: {error.strerror or error}"
            ) from error


@dataclass(frozen=True, slots=True)
class Preparing:
    """How a sync computes documents.

    warm, keep, kept: the engine's methods. arguments: for the first two, of all sets.
    render: writes their prompts; None if nothing tells how. tenant: whose prompts are to find them.
    borrows: whether the engine borrows documents from other contexts.
    """

    warm: Callable[..., Warmed]
    keep: Callable[..., object]
    kept: Callable[[], Iterable[KeptDocuments]]
    arguments: Mapping[str, Any]
    render: Render | None
    tenant: str | None
    borrows: bool

    def check(self, documents: Iterable[Document]) -> None:
        """Raise UnknownTemplate unless it is known what stands before each of these documents."""
        plan_prefills([[one] for one in documents], {}, self.render)

    def compute(self, documents: Sequence[Document]) -> Warmed:
        """Compute documents that no tier holds."""
        sets = sets_of_each(documents, borrows=self.borrows)
        try:
            return self.warm(sets, **self.arguments, tenant=self.tenant, only_missing=True)
        except OF_ONE_SET as error:  # none could be computed, which is no reason to end here
            return Warmed(left_out=tuple(LeftOut((one.id,), str(error)) for one in documents))

    def keep_again(self, documents: Sequence[Document], kept: KeptDocuments) -> None:
        """Keep a set of documents as it was kept before, with the texts that they have now."""
        self.keep(
            [documents], **self.arguments, tenant=kept.tenant, tier=kept.tier, until=kept.until
        )


def sync_documents(
    documents: Iterable[Document],
    record: SyncRecord,
    forget: Callable[[Sequence[str]], None],
    preparing: Preparing | None,
) -> Synced:
    """Forget what changed or vanished since the record was written; compute what is new.

    forget: the engine's method. preparing: how to compute what is new; None: not at all.
    A sync that fails is repeated by the next one: the record says at any time what may be cached, and
    what was kept.
    Raises InvalidArgument or UnknownTemplate before any work, and what the work raises.
    """
    given: dict[str, Document] = {}
    for one in require_items(documents, Document, "documents", DOCUMENTS_HINT):
        if given.setdefault(one.id, one).text != one.text:
            raise InvalidArgument(f"two documents have the id {one.id!r} and different texts")
    digests = {name: _digest(one.text) for name, one in given.items()}
    with record.lock:
        before = record.read()
        changed = [name for name in given if before.get(name, digests[name]) != digests[name]]
        added = [name for name in given if name not in before]
        removed = [name for name in before if name not in given]
        new = [given[name] for name in (*changed, *added)]
        doomed = [*changed, *removed]
        kept_no_longer: list[LeftOut] = []
        if preparing:
            preparing.check(new)
            if doomed:
                record.to_keep += _ended_by(doomed, preparing, given, kept_no_longer)
        record.write(before | dict.fromkeys([*doomed, *added], UNPREPARED))
        if doomed:
            forget(doomed)
        record.write(digests | {one.id: UNPREPARED for one in new})
        warmed = preparing.compute(new) if preparing and new else None
        if preparing:
            kept_no_longer += _keep_again(preparing, record.to_keep, given)
            record.to_keep = []
        record.write(digests)
    return Synced(
        tuple(added),
        tuple(changed),
        tuple(removed),
        len(given) - len(new),
        warmed,
        tuple(kept_no_longer),
    )


def _ended_by(
    doomed: Iterable[str],
    preparing: Preparing,
    given: Collection[str],
    kept_no_longer: list[LeftOut],
) -> Iterator[KeptDocuments]:
    """Yield the kept sets that forgetting ends and that can be kept again; note the others."""
    ended = {*doomed}
    for one in preparing.kept():
        if ended.isdisjoint(one.documents) or is_cache_point(one.documents):
            continue
        if one.tenant != preparing.tenant:
            kept_no_longer.append(LeftOut(one.documents, "another tenant keeps it"))
        elif all(name in given for name in one.documents):
            yield one
        elif any(name in given for name in one.documents):
            kept_no_longer.append(LeftOut(one.documents, "a document of it has vanished"))


def _keep_again(
    preparing: Preparing,
    kept: Iterable[KeptDocuments],
    given: Mapping[str, Document],
) -> Iterator[LeftOut]:
    """Keep these sets as before; yield those that cannot be."""
    for one in kept:
        try:
            if not all(name in given for name in one.documents):
                raise UnknownDocument("a document of it has vanished")
            preparing.keep_again([given[name] for name in one.documents], one)
        except (BadRequest, CannotKeep, GenerationFailed, UnknownDocument) as error:
            logger.warning("%s is kept no longer: %s", ", ".join(map(repr, one.documents)), error)
            yield LeftOut(one.documents, str(error))


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
