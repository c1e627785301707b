"""One block's key-value tensors as a file that can tell whether it is whole, and whose it is.

    8 bytes   magic and format version
    4 bytes   length of the header, little endian
    header    JSON: origin, name, documents, payload length
    payload   the tensors, as the host tier holds them
    16 bytes  BLAKE2b of everything before

A file is written under another name, synced and renamed, so that under its own name it is whole or not
there. Reading believes nothing: a file that is damaged, cut short, foreign, or another block's under
this one's name is a miss.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

MAGIC = b"RAGCKV\x00\x01"
CHECKSUM_BYTES = 16
LONGEST_HEADER_BYTES = 1 << 20
UNFINISHED_SUFFIX = ".writing"
"""End of the names of files not yet whole."""


class UnusableFile(Exception):
    """The file does not hold what its name says."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What tensors must agree in to be exchanged: all that goes into their bytes but the tokens.

    model: name and a digest of its configuration. layout: how vLLM lays out a block.
    """

    model: str
    dtype: str
    rope: str
    block_tokens: int
    layout: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "dtype": self.dtype,
            "rope": self.rope,
            "block_tokens": self.block_tokens,
            "layout": self.layout,
        }

    def digest(self) -> str:
        """Short, and another one for other tensors: names their folder."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()


def document_mark(document_id: str) -> str:
    """What stands for a document in a header: ids may say more than a disk should."""
    return blake2b(document_id.encode(), digest_size=8).hexdigest()


def write(
    path: Path, origin: Origin, name: str, documents: Sequence[str], payload: memoryview
) -> int:
    """Write a block; returns the file's bytes. Raises OSError, and leaves nothing behind then.

    documents: marks of all documents up to and with this block.
    """
    header = _header(origin, name, documents, payload)
    parts: tuple[bytes | memoryview, ...] = (
        MAGIC,
        len(header).to_bytes(4, "little"),
        header,
        payload,
    )
    checksum = blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        checksum.update(part)
    # Processes in containers may share a number, and engines a process.
    unfinished = path.with_name(
        f"{path.name}.{os.urandom(4).hex()}.{os.getpid()}{UNFINISHED_SUFFIX}"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "wb", buffering=0) as file:
            _write_all(file.fileno(), (*parts, checksum.digest()))
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    return sum(len(part) for part in parts) + CHECKSUM_BYTES


def read(path: Path, origin: Origin, name: str, target: memoryview) -> int:
    """Read a block into `target`; returns the file's bytes.

    Raises FileNotFoundError; OSError; UnusableFile, and then what is in `target` means nothing.
    """
    checksum = blake2b(digest_size=CHECKSUM_BYTES)
    with open(path, "rb", buffering=0) as file:
        start, header = _read_header(file.fileno())
        if header.get("origin") != origin.as_dict() or header.get("name") != name:
            raise UnusableFile(f"{path} holds another block")
        if header.get("payload_bytes") != target.nbytes:
            raise UnusableFile(f"{path} holds a block of another size")
        checksum.update(start)
        _read_into(file.fileno(), target)
        checksum.update(target)
        if _read_exactly(file.fileno(), CHECKSUM_BYTES) != checksum.digest():
            raise UnusableFile(f"{path} is damaged")
        if os.read(file.fileno(), 1):
            raise UnusableFile(f"{path} is longer than it says")
    return len(start) + target.nbytes + CHECKSUM_BYTES


def read_document_marks(path: Path) -> frozenset[str]:
    """Marks of the documents that a file's tensors were computed from.

    Raises OSError, UnusableFile.
    """
    with open(path, "rb", buffering=0) as file:
        _, header = _read_header(file.fileno())
    documents = header.get("documents")
    if not isinstance(documents, list):
        raise UnusableFile(f"{path} does not say what it holds")
    return frozenset(map(str, documents))


def file_bytes(origin: Origin, name: str, documents: Sequence[str], payload: memoryview) -> int:
    """How long the file of a block will be."""
    header = _header(origin, name, documents, payload)
    return len(MAGIC) + 4 + len(header) + payload.nbytes + CHECKSUM_BYTES


def _header(origin: Origin, name: str, documents: Sequence[str], payload: memoryview) -> bytes:
    return json.dumps(
        {"origin": origin.as_dict(), "name": name, "documents": list(documents)}
        | {"payload_bytes": payload.nbytes},
        separators=(",", ":"),
    ).encode()


def _read_header(descriptor: int) -> tuple[bytes, dict[str, Any]]:
    """All bytes up to the payload, and the header among them."""
    start = _read_exactly(descriptor, len(MAGIC) + 4)
    if not start.startswith(MAGIC):
        raise UnusableFile("not a block file, or of another format version")
    length = int.from_bytes(start[-4:], "little")
    if length > LONGEST_HEADER_BYTES:
        raise UnusableFile("its header is too long to be one")
    text = _read_exactly(descriptor, length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableFile("its header is damaged") from error
    if not isinstance(header, dict):
        raise UnusableFile("its header is damaged")
    return start + text, header


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
