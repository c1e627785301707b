"""The demo's corpus: the language reference that every Python has for `help("topic")`."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection, Iterable, Mapping

from ragcache_cli.corpus_sources import Section, Source
from ragcache_cli.passages import paragraphs

COLLECTIONS = frozenset({"compound", "specialnames", "types"})
"""Topics that only repeat many smaller ones."""
STATEMENTS = frozenset(
    {
        "assert",
        "async",
        "break",
        "class",
        "context-managers",
        "continue",
        "del",
        "exceptions",
        "for",
    }
    | {"function", "global", "if", "import", "lambda", "nonlocal", "pass", "raise", "return", "try"}
    | {"while", "with", "yield"}
)
"""The topics on statements, but for assignments: what the demo indexes and asks about."""
SHORTEST_REPEAT = 80
"""Characters. A shorter paragraph, such as "For example:", may stand in several topics."""


def python_topics(only: Collection[str] | None = None) -> list[Source]:
    """Return the topics of the running Python, as one source that changes with its version.

    only: the topics to take; None for all.
    """
    from pydoc_data.topics import topics

    sections = [
        section for section in without_repeats(topics) if only is None or section.title in only
    ]
    return [
        Source(
            name=f"Python {platform.python_version()} topics",
            size_bytes=sum(len(section.text.encode()) for section in sections),
            mtime_ns=0,
            digest=lambda: hashlib.sha256(repr(sections).encode()).hexdigest(),
            read=lambda: sections,
        )
    ]


def without_repeats(topics: Mapping[str, str]) -> Iterable[Section]:
    """Yield the topics with each paragraph once, in the shortest topic that has it.

    Many topics are chapters that contain smaller topics word for word. Both together would fill a prompt
    with the same text twice.
    """
    seen: set[str] = set()
    single = topics.keys() - COLLECTIONS
    for title in sorted(single, key=lambda title: (len(topics[title]), title)):
        kept = [part for part in paragraphs(topics[title]) if part not in seen]
        seen.update(part for part in kept if len(part) >= SHORTEST_REPEAT)
        yield Section(title, "\n\n".join(kept), id=title)
