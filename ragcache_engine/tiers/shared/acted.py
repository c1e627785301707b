"""Where a host writes down which of a store's tombstones it has acted upon.

<folder of the disk cache>/shared/<digest of the store>/<mark>     the stamp
"""

from __future__ import annotations

import contextlib
from hashlib import blake2b
from pathlib import Path

from ragcache_engine.tiers.shared.store import SharedStore

FOLDER = "shared"


def acted_place(folder: Path, store: SharedStore) -> Path:
    """Return the folder with the stamps that a host has acted upon."""
    digest = blake2b(store.identity.encode(), digest_size=8).hexdigest()
    return folder / FOLDER / digest


def read_acted(place: Path, mark: str) -> str | None:
    """Return the stamp of a document's tombstone that the host has acted upon; None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return (place / mark).read_text()
    return None
