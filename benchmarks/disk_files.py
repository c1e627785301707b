"""Measure what a core does with the disk tier's files: their checksum, and what encrypts them.

    python benchmarks/disk_files.py                         # blocks of 64 KiB, 1 and 16 MiB

The files lie in memory (/dev/shm, where there is one), so that the disk does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from programs import command_line
from tables import spread, table
from xxhash import xxh3_128

from ragcache_engine.tiers.disk import block_file
from ragcache_engine.tiers.disk.block_file import Origin
from ragcache_engine.tiers.disk.key_files import NONCE_BYTES
from ragcache_engine.tiers.disk.key_ring import KeyRing

ORIGIN = Origin("weights", "configuration", "bfloat16", 16, "NHD", "vllm")
NAME = "ab" * 28
KIB, MB = 1 << 10, 1e6
REPEATS, LEAST_BYTES = 9, 64 << 20


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--kib", type=int, nargs="+", default=[64, 1024, 16384])
    asked = parser.parse_args()
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        rows = [row for kib in asked.kib for row in measure(Path(folder), kib * KIB)]
    heads = ("block", "what", "MB/s of a core: median (quartiles)")
    print(*table(heads, rows), sep="\n")


def measure(folder: Path, size_bytes: int) -> list[list[str]]:
    """Return rows for one size of block."""
    payload, keys = memoryview(os.urandom(size_bytes)), KeyRing(folder, [os.urandom(32)])
    nonce, path, target = bytes(NONCE_BYTES), folder / "block", memoryview(bytearray(size_bytes))
    key = keys.key_of("")
    sealed = memoryview(key.cipher.encrypt(nonce, payload, b""))

    def write(with_keys: KeyRing | None) -> None:
        block_file.write(path, ORIGIN, NAME, (), payload, with_keys)

    def read(with_keys: KeyRing | None) -> None:
        block_file.read(path, ORIGIN, NAME, target, with_keys)

    works: dict[str, Callable[[], object]] = {
        "checksum alone": lambda: xxh3_128(payload).digest(),
        "encrypting alone": lambda: key.cipher.encrypt(nonce, payload, b""),
        "decrypting alone": lambda: keys.decrypt("", key.id, nonce, sealed, b"", target),
        "writing a file": lambda: write(None),
        "reading it": lambda: read(None),
        "writing an encrypted file": lambda: write(keys),
        "reading it, decrypted": lambda: read(keys),
    }
    return [
        [f"{size_bytes // KIB:,} KiB", what, spread(speeds(work, size_bytes), ",.0f")]
        for what, work in works.items()
    ]


def speeds(work: Callable[[], object], size_bytes: int) -> list[float]:
    """Return how many MB a second the work takes on, several times."""
    found, times = [], max(1, LEAST_BYTES // size_bytes)
    work()
    for _ in range(REPEATS):
        begun = time.process_time()
        for _ in range(times):
            work()
        found.append(times * size_bytes / MB / (time.process_time() - begun))
    return found


if __name__ == "__main__":
    main()
