"""Imports large libraries sooner."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pausing_garbage_collection() -> Iterator[None]:
    """Collect no garbage in the block, which imports: nearly all that it makes stays.

    Looking through it again and again takes a fifth of the time in which vLLM and the demo's other
    libraries are imported.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
