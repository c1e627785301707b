"""Saves a store in a folder, and loads it again.

    faiss_store.json          the manifest: format, version, metric, kind of index, and of each
                              file its name, size and SHA-256
    index-<save>.faiss        the Faiss index, as Faiss writes it
    documents-<save>.jsonl    {"row": 0, "id": "...", "text": "...", "metadata": {...}} a line

A save writes new files beside the old ones. Then it replaces the old manifest with the new one, and
this one step makes the save valid. A crash before that step leaves the old save, a crash after it
the new one; the next save removes leftover files. Nothing is pickled. The checksums detect damage,
not forgery: whoever can change the files can change the manifest too.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import faiss
from langchain_core.documents import Document

from ragcache_integrations.langchain.faiss_store.collection import Collection, Snapshot
from ragcache_integrations.langchain.faiss_store.errors import (
    NotStorable,
    SaveDamaged,
    SaveForeign,
    SaveNotFound,
)
from ragcache_integrations.langchain.faiss_store.indexes import kind_from_dict, kind_to_dict
from ragcache_integrations.langchain.faiss_store.metric import Metric

MANIFEST = "faiss_store.json"
FORMAT = "ragcache faiss store"
VERSION = 1

_OUR_FILE = re.compile(r"(index|documents|manifest)-[0-9a-f]{16}\.(faiss|jsonl|tmp)")


def save(collection: Collection, folder: Path) -> None:
    """Save the collection's present state in the folder, which is created if it does not exist.

    Raises NotStorable and SaveForeign before anything is written, OSError if writing fails. In all
    these cases the folder still holds the previous save.
    """
    with collection.frozen() as state:
        for document in state.rows.values():
            _check_storable(document)
        folder.mkdir(parents=True, exist_ok=True)
        with _folder_lock(folder, fcntl.LOCK_EX):
            _refuse_foreign_folder(folder)
            name = secrets.token_hex(8)
            new = {"documents": f"documents-{name}.jsonl"}
            if state.index is not None:
                new["index"] = f"index-{name}.faiss"
            try:
                _write_lines(folder / new["documents"], state.rows)
                if state.index is not None:
                    _write_index(folder / new["index"], state.index)
                manifest = {
                    "format": FORMAT,
                    "version": VERSION,
                    "metric": str(collection.metric),
                    "index": kind_to_dict(collection.kind),
                    "built_from": state.built_from,
                    "documents": len(state.rows),
                    "files": {role: _describe_file(folder / file) for role, file in new.items()},
                }
                _replace_manifest(folder, f"manifest-{name}.tmp", manifest)
            finally:
                _remove_leftovers(folder)


def load(folder: Path) -> Collection:
    """Return the collection that was saved in the folder.

    Raises SaveNotFound, SaveForeign, SaveDamaged.
    """
    if not folder.is_dir():
        raise SaveNotFound(f"{folder} is not a folder; give the one that save_local() was given")
    with _folder_lock(folder, fcntl.LOCK_SH):
        manifest = _read_manifest(folder)
        if manifest is None:
            raise _nothing_saved_error(folder)
        with _errors_as_damage(folder):
            return _read_collection(folder, manifest)


def _read_collection(folder: Path, manifest: Mapping[str, Any]) -> Collection:
    files = {role: _verify_file(folder, entry) for role, entry in manifest["files"].items()}
    index = faiss.read_index(str(files["index"])) if "index" in files else None
    with files["documents"].open("rb") as lines:  # text mode would split at other characters too
        rows = dict(_parse_line(json.loads(line)) for line in lines)
    if len(rows) != manifest["documents"] or (rows and max(rows) >= (index.ntotal if index else 0)):
        raise SaveDamaged(f"{folder}: index and documents do not belong together; {_RESTORE}")
    kind = kind_from_dict(manifest["index"], index)
    snapshot = Snapshot(index, manifest["built_from"], rows)
    return Collection(kind, Metric(manifest["metric"]), snapshot)


@dataclass(frozen=True, slots=True)
class _Line:
    """A document as one line of the file."""

    row: int
    document: Document

    def encode(self) -> bytes:
        fields = {
            "row": self.row,
            "id": self.document.id,
            "text": self.document.page_content,
            "metadata": self.document.metadata,
        }
        try:
            line = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can only escape
            line = json.dumps(fields, allow_nan=False).encode()
        return line + b"\n"


def _parse_line(line: Mapping[str, Any]) -> tuple[int, Document]:
    document = Document(id=line["id"], page_content=line["text"], metadata=line["metadata"])
    return line["row"], document


def _check_storable(document: Document) -> None:
    """Raise NotStorable unless the document would come back from JSON unchanged."""
    try:
        restored = json.loads(_Line(0, document).encode())["metadata"]
        reason = None if restored == document.metadata else "its metadata would come back changed"
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    if reason:
        culprits = [repr(key) for key, value in document.metadata.items() if not _is_plain(value)]
        where = f" (see {', '.join(culprits)})" if culprits else ""
        raise NotStorable(
            f"document {document.id!r} cannot be saved: {reason}{where}. Keep to strings, finite "
            f"numbers, True, False, None, lists and dicts with string keys; dates as isoformat(). "
            f"Nothing was written"
        )


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _write_lines(path: Path, rows: Mapping[int, Document]) -> None:
    with path.open("xb") as file:
        file.writelines(_Line(row, document).encode() for row, document in rows.items())
        _sync(file.fileno(), file.flush)


def _write_index(path: Path, index: faiss.Index) -> None:
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise OSError(f"Faiss could not write {path}: {error}") from error
    with path.open("rb") as file:
        _sync(file.fileno())


def _replace_manifest(folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
    with (folder / name).open("x", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        _sync(file.fileno(), file.flush)
    _sync_folder(folder)  # the new files' names must be on disk before the manifest names them
    os.replace(folder / name, folder / MANIFEST)
    _sync_folder(folder)


def _sync(descriptor: int, flush: Any = None) -> None:
    if flush:
        flush()
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    """Remove the store's files that the manifest does not name: old saves and broken ones."""
    with suppress(OSError, SaveDamaged, SaveForeign):
        manifest = _read_manifest(folder) or {"files": {}}
        named = {entry["name"] for entry in manifest["files"].values()}
        for path in folder.iterdir():
            if _OUR_FILE.fullmatch(path.name) and path.name not in named:
                path.unlink()


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest, or None if there is none. Raises SaveDamaged, SaveForeign."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise SaveDamaged(f"{folder / MANIFEST} is not text; {_RESTORE}") from error
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise SaveDamaged(f"{folder / MANIFEST} is not JSON ({error}); {_RESTORE}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise SaveForeign(f"{folder / MANIFEST} is another program's; choose another folder")
    if manifest.get("version") != VERSION:
        raise SaveForeign(
            f"{folder} was saved in format {manifest.get('version')}, this version reads {VERSION}; "
            f"load it with the version of ragcache-integrations that saved it, or a newer one"
        )
    return manifest


def _refuse_foreign_folder(folder: Path) -> None:
    """Raise SaveForeign if saving would overwrite another program's file.

    A damaged save of our own may be overwritten.
    """
    with suppress(SaveDamaged):
        _read_manifest(folder)


def _nothing_saved_error(folder: Path) -> Exception:
    pickles = sorted(path.stem for path in folder.glob("*.pkl"))
    if pickles:
        return SaveForeign(
            f"{folder} was saved by langchain_community's FAISS ({pickles[0]}.pkl); read it with "
            f"FaissVectorStore.from_langchain_community(), and save it here anew"
        )
    return SaveNotFound(f"no store was saved in {folder}: it has no {MANIFEST}")


_RESTORE = "restore the folder from a backup, or build the store again"


def _verify_file(folder: Path, entry: Mapping[str, Any]) -> Path:
    """Return the path of a saved file. Raises SaveDamaged unless the file is as it was saved."""
    if Path(entry["name"]).name != entry["name"]:
        raise SaveDamaged(f"{folder / MANIFEST} names a file outside its folder; {_RESTORE}")
    path = folder / str(entry["name"])
    if not path.is_file():
        raise SaveDamaged(f"{path} is missing; {_RESTORE}")
    if _describe_file(path) != entry:
        raise SaveDamaged(f"{path} is not as it was saved; {_RESTORE}")
    return path


def _describe_file(path: Path) -> dict[str, Any]:
    digest = sha256()
    with path.open("rb") as file:
        for part in _chunks(file):
            digest.update(part)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _chunks(file: Any) -> Iterable[bytes]:
    return iter(lambda: file.read(1 << 20), b"")


@contextmanager
def _errors_as_damage(folder: Path) -> Iterator[None]:
    """Raise SaveDamaged for an incomplete manifest or a file that cannot be understood."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise SaveDamaged(f"{folder} cannot be read ({error!r}); {_RESTORE}") from error


@contextmanager
def _folder_lock(folder: Path, how: int) -> Iterator[None]:
    """Lock the folder for this block: one save at a time, and no save during a load.

    A crash releases the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems have no locks. Then only the order of a save's steps protects the folder.
        with suppress(OSError):
            fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
