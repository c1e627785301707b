"""Counts what our part of the scheduling takes, request by request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ragcache_engine.tiers.keeper import Keeper


@contextmanager
def timed(keeper: Keeper[Any], request: str) -> Iterator[None]:
    """Count the time inside the block as spent on the request."""
    start = time.perf_counter()
    yield
    keeper.spent(request, time.perf_counter() - start)
