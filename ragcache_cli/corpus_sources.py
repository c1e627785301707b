"""What an index is made of: named sources that can tell whether they changed, and hold sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A titled text. id: where the source itself names its sections, else empty."""

    title: str
    text: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One file, or something as good as one.

    digest: SHA-256 of the content, in hexadecimal; asked only if size or time differ from before.
    read: the sections; may raise Unreadable.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    digest: Callable[[], str]
    read: Callable[[], Iterable[Section]]


class Unreadable(Exception):
    """A source has no text to give. It is left out with a warning; the message says why."""
