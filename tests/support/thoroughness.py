"""How many examples property tests try: few in every run, ten times as many by `make properties`."""

from __future__ import annotations

import os

TIMES = "RAGCACHE_EXAMPLES"
"""The environment variable with the factor."""


def examples(count: int) -> int:
    """Return how many examples to try where an ordinary run tries so many."""
    return max(1, round(count * float(os.environ.get(TIMES, "1"))))
