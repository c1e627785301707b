"""The error of a comparison."""

from __future__ import annotations

from ragcache_cli.errors import CommandError


class BenchFailed(CommandError):
    """A system under comparison did not start, or failed a request. The message quotes the system."""
