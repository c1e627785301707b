"""The sources of an index: each has a name and titled sections, and can tell whether it has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A titled text. id: the name that the source gives the section; empty if it gives none."""

    title: str
    text: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or anything else with a name and a content.

    digest: returns the SHA-256 of the content in hexadecimal; called only if the time of change differs
    from before. read: returns the sections, or raises Unreadable.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    digest: Callable[[], str]
    read: Callable[[], Iterable[Section]]


class Unreadable(Exception):
    """A source has no text that can be read. It is left out with a warning; the message says why."""
