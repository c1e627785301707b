"""Reads and writes the file of one block's key-value tensors; a checksum tells whether it is whole.

    8 bytes   magic and format version
    4 bytes   length of the header, little endian
    header    JSON: origin, name, documents, payload length; encrypted: ids of key ring and key, the nonce
    payload   the tensors, byte for byte as the host tier holds them, or encrypted
    16 bytes  XXH3 (128 bits) of everything before; encrypted: the tag of AES-256-GCM

The checksum finds damage, not forgery: whoever may write into the folder could also write a right one. A
model on a CPU shares its cores with it, so it has to be fast. The tag finds forgery too, of the header as
of the payload.

A file is written under another name, synced and renamed, so that under its own name it is either whole or
absent. Reading verifies everything: a file that is damaged, cut short, of another origin, or that holds
another block is unusable, which the cache treats as a miss.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from ragcache_engine.tiers.disk.key_files import NONCE_BYTES
from ragcache_engine.tiers.disk.key_ring import KeyRing, OtherKey
from ragcache_engine.tiers.disk.naming import owner_in

MAGIC = b"RAGCKV\x00\x03"
CHECKSUM_BYTES = 16
"""A tag of AES-GCM has as many."""
LONGEST_HEADER_BYTES = 1 << 20
UNFINISHED_SUFFIX = ".writing"
"""The suffix of a file's name while it is being written."""


NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
"""Flags for opening a file: a pipe is opened without a writer, a link not at all."""


class UnusableFile(Exception):
    """The file is damaged, or does not hold the block that its name stands for."""


class ForgottenFile(UnusableFile):
    """The file is older than the forgetting of one of its documents."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where tensors come from: everything besides the tokens that determines their bytes.

    Engines exchange tensors only if their origins are equal.
    weights: identifies the content of the model's weights, wherever they lie.
    configuration: a digest of the model's configuration with all overrides, such as RoPE's.
    dtype: the tensors' type. block_tokens: tokens in a block.
    layout: how the attention kernels of every worker lay out a block.
    software: the program that computed the tensors, with its version.
    """

    weights: str
    configuration: str
    dtype: str
    block_tokens: int
    layout: str
    software: str

    def as_dict(self) -> dict[str, Any]:
        """Return the origin as it stands in a file's header."""
        return asdict(self)

    def digest(self) -> str:
        """Return a short digest of the origin, which names the folder of its files."""
        text = json.dumps([MAGIC.hex(), self.as_dict()], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()


def write(
    path: Path,
    origin: Origin,
    name: str,
    documents: Sequence[str],
    payload: memoryview,
    keys: KeyRing | None = None,
    used_ns: int | None = None,
) -> int:
    """Write a block to its file; return the file's bytes.

    documents: marks of all documents up to and including this block. keys: what to encrypt it with.
    used_ns: its time of use; None: now. Raises OSError, and leaves no file behind then.
    """
    parts = pack(origin, name, documents, payload, keys)
    # The process id alone does not tell writers apart: containers may use the same one, and a process
    # may run several engines.
    unfinished = path.with_name(
        f"{path.name}.{os.urandom(4).hex()}.{os.getpid()}{UNFINISHED_SUFFIX}"
    )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(unfinished, "xb", buffering=0, opener=_open_private) as file:
            _write_all(file.fileno(), parts)
            os.fsync(file.fileno())
        note_use(unfinished, used_ns)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    return sum(map(len, parts))


def note_use(path: Path, used_ns: int | None = None) -> None:
    """Set a file's time of use, to now if none is given. Raises OSError.

    By the clock of tombstones: a filesystem's own may be milliseconds behind, and what was written a
    moment after a forgetting would look older.
    """
    used_ns = time.time_ns() if used_ns is None else used_ns
    os.utime(path, ns=(used_ns, used_ns))


def pack(
    origin: Origin,
    name: str,
    documents: Sequence[str],
    payload: memoryview,
    keys: KeyRing | None = None,
) -> Sequence[bytes | memoryview]:
    """Return what a block's file consists of, in order. The arguments are those of `write`."""
    nonce = os.urandom(NONCE_BYTES) if keys else b""
    key = keys.key_of(owner_in(name)) if keys else None
    header = _header(origin, name, documents, payload, keys, nonce, key.id if key else "")
    start = MAGIC + len(header).to_bytes(4, "little") + header
    if key is not None:
        return start, key.cipher.encrypt(nonce, payload, start)
    checksum = xxh3_128(start)
    checksum.update(payload)
    return start, payload, checksum.digest()


def unpack(
    content: bytes, origin: Origin, name: str, target: memoryview, keys: KeyRing | None = None
) -> None:
    """Copy a block out of its file's content, as `read` does out of the file.

    Raises UnusableFile, and then the content of `target` is undefined; KeyAway.
    """
    view, fixed = memoryview(content), len(MAGIC) + 4
    length = _header_bytes(content[:fixed])
    start, sealed = content[: fixed + length], view[fixed + length :]
    header = _parse_header(start[fixed:])
    _require_block(header, origin, name, target, keys, name)
    if sealed.nbytes != target.nbytes + CHECKSUM_BYTES:
        raise UnusableFile(f"{name} has another length than it says")
    if keys is None:
        payload = sealed[:-CHECKSUM_BYTES]
        checksum = xxh3_128(start)
        checksum.update(payload)
        if sealed[-CHECKSUM_BYTES:] != checksum.digest():
            raise UnusableFile(f"{name} is damaged")
        target[:] = payload
    elif not _decrypt(keys, name, header, sealed, start, target):
        raise UnusableFile(f"{name} is damaged")


def read(
    path: Path,
    origin: Origin,
    name: str,
    target: memoryview,
    keys: KeyRing | None = None,
    is_forgotten: Callable[[Iterable[str], int], bool] = lambda marks, used_ns: False,
) -> int:
    """Read a block into `target`; return the file's bytes. keys: what it was encrypted with.

    is_forgotten: tells by its documents' marks and its time of use whether the block must not be used.
    Raises FileNotFoundError, another OSError, KeyAway or UnusableFile. After UnusableFile the content of
    `target` is undefined.
    """
    with _open_regular(path) as file:
        start, header = _read_header(file.fileno())
        _require_block(header, origin, name, target, keys, path)
        if is_forgotten(_read_marks(header), os.fstat(file.fileno()).st_mtime_ns):
            raise ForgottenFile(f"{path} is of a document that was forgotten")
        if keys is None:
            checksum = xxh3_128(start)
            _read_into(file.fileno(), target)
            checksum.update(target)
            if _read_exactly(file.fileno(), CHECKSUM_BYTES) != checksum.digest():
                raise UnusableFile(f"{path} is damaged")
        else:
            sealed = keys.buffer(target.nbytes + CHECKSUM_BYTES)
            _read_into(file.fileno(), sealed)
            if not _decrypt(keys, name, header, sealed, start, target):
                raise UnusableFile(f"{path} is damaged")
        if os.read(file.fileno(), 1):
            raise UnusableFile(f"{path} is longer than it says")
    return len(start) + target.nbytes + CHECKSUM_BYTES


def add_marks(
    path: Path,
    origin: Origin,
    name: str,
    documents: Sequence[str],
    keys: KeyRing | None = None,
    is_forgotten: Callable[[Iterable[str], int], bool] = lambda marks, used_ns: False,
) -> int:
    """Let a block's file carry these marks besides its own; return how many bytes it has more now.

    The file is written again, with its time of use: if its documents are forgotten meanwhile, it is older
    than that still. The other arguments and the errors are those of `read` and `write`.
    """
    with _open_regular(path) as file:
        _, header = _read_header(file.fileno())
        place = os.fstat(file.fileno())
        marks = _read_marks(header)
        if is_forgotten(marks, place.st_mtime_ns):
            raise ForgottenFile(f"{path} is of a document that was forgotten")
        file.seek(0)
        content = _read_exactly(file.fileno(), place.st_size)
    size = header.get("payload_bytes")
    if not isinstance(size, int) or not 0 <= size < place.st_size:
        raise UnusableFile("its header is damaged")
    payload = memoryview(bytearray(size))
    unpack(content, origin, name, payload, keys)
    more = [*sorted(marks), *(mark for mark in documents if mark not in marks)]
    written = write(path, origin, name, more, payload, keys, place.st_mtime_ns)
    return written - place.st_size


def _require_block(
    header: Mapping[str, Any],
    origin: Origin,
    name: str,
    target: memoryview,
    keys: KeyRing | None,
    where: Path | str,
) -> None:
    """Raise UnusableFile unless a header is that of this block."""
    if header.get("origin") != origin.as_dict() or header.get("name") != name:
        raise UnusableFile(f"{where} holds another block")
    if header.get("payload_bytes") != target.nbytes:
        raise UnusableFile(f"{where} holds a block of another size")
    if header.get("keys") != (None if keys is None else keys.id):
        raise UnusableFile(f"{where} is encrypted otherwise")


def _decrypt(
    keys: KeyRing,
    name: str,
    header: Mapping[str, Any],
    sealed: memoryview,
    start: bytes,
    target: memoryview,
) -> bool:
    """Write a block into `target`; False if it is damaged. Raises UnusableFile, KeyAway, OSError."""
    try:
        key_id, nonce = str(header["key"]), bytes.fromhex(header["nonce"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableFile("its header is damaged") from error
    try:
        return keys.decrypt(owner_in(name), key_id, nonce, sealed, start, target)
    except OtherKey as error:
        raise UnusableFile(f"{name}: {error}") from error


def is_regular(path: Path) -> bool:
    """Whether a plain file lies there; a link, a folder or a pipe is none. Does not block."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _open_regular(path: Path) -> FileIO:
    """Open a plain file for reading. Never waits, as opening a pipe would.

    Raises UnusableFile for anything but a plain file, FileNotFoundError, another OSError.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise UnusableFile(f"{path} is not a plain file")
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | NEVER_WAIT))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # exchanged in between
        file.close()
        raise UnusableFile(f"{path} is not a plain file")
    return file


def _open_private(name: str, flags: int) -> int:
    """Open a new file that only its owner may read: it holds what documents say."""
    return os.open(name, flags, mode=0o600)


def read_document_marks(path: Path, keys: KeyRing | None = None) -> frozenset[str]:
    """Read the marks of the documents that a file's tensors were computed from.

    Raises OSError; UnusableFile, also for a file whose marks are made with other keys.
    """
    with _open_regular(path) as file:
        _, header = _read_header(file.fileno())
    if header.get("keys") != (keys.id if keys else None):
        raise UnusableFile(f"{path} does not say what it holds")
    return _read_marks(header)


def _read_marks(header: Mapping[str, Any]) -> frozenset[str]:
    documents = header.get("documents")
    if not isinstance(documents, list):
        raise UnusableFile("its header does not say what it holds")
    return frozenset(map(str, documents))


def file_bytes(
    origin: Origin,
    name: str,
    documents: Sequence[str],
    payload: memoryview,
    keys: KeyRing | None = None,
) -> int:
    """Compute how many bytes the file of a block will have."""
    header = _header(origin, name, documents, payload, keys, bytes(NONCE_BYTES), "0" * 16)
    return len(MAGIC) + 4 + len(header) + payload.nbytes + CHECKSUM_BYTES


def _header(
    origin: Origin,
    name: str,
    documents: Sequence[str],
    payload: memoryview,
    keys: KeyRing | None,
    nonce: bytes,
    key_id: str,
) -> bytes:
    header = {"origin": origin.as_dict(), "name": name, "documents": list(documents)} | {
        "payload_bytes": payload.nbytes
    }
    if keys is not None:
        header |= {"keys": keys.id, "key": key_id, "nonce": nonce.hex()}
    return json.dumps(header, separators=(",", ":")).encode()


def _read_header(descriptor: int) -> tuple[bytes, dict[str, Any]]:
    """Read up to the payload; return the bytes read, and the header parsed from them."""
    start = _read_exactly(descriptor, len(MAGIC) + 4)
    text = _read_exactly(descriptor, _header_bytes(start))
    return start + text, _parse_header(text)


def _header_bytes(start: bytes) -> int:
    """Return how many bytes a header has. start: all before it."""
    if not start.startswith(MAGIC):
        raise UnusableFile("not a block file, or of another format version")
    length = int.from_bytes(start[-4:], "little")
    if length > LONGEST_HEADER_BYTES:
        raise UnusableFile("its header is too long to be one")
    return length


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableFile("its header is damaged") from error
    if not isinstance(header, dict):
        raise UnusableFile("its header is damaged")
    return header


def _read_exactly(descriptor: int, length: int) -> bytes:
    content = bytearray(length)
    _read_into(descriptor, memoryview(content))
    return bytes(content)


def _read_into(descriptor: int, target: memoryview) -> None:
    at = 0
    while at < target.nbytes:
        read_bytes = os.readv(descriptor, [target[at:]])
        if not read_bytes:
            raise UnusableFile("it is cut short")
        at += read_bytes


def _write_all(descriptor: int, parts: Iterable[bytes | memoryview]) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest.nbytes:
            rest = rest[os.write(descriptor, rest) :]
