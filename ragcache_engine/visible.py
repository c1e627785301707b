"""Shows text that somebody else wrote, such as a document's id, where a person or a log reads it.

A terminal obeys escape codes, a log's reader takes a line for the program's own, and marks of direction
show a text as another one than it is.
"""

from __future__ import annotations

import traceback
import unicodedata

LONGEST_SHOWN = 200
"""How many characters of a name are shown in a message."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of control characters, marks of direction and the like, and ends of lines."""

_JOINERS = "\u200c\u200d"
"""Of these categories, what Persian, Hindi and emoji are written with."""


def visible(text: str, *, keep: str = "", most: int | None = None) -> str:
    r"""Return a text with escapes in place of what a reader would not see.

    keep: control characters that stay, such as "\n\t" in a whole answer. most: shorten the text to so
    many characters before.

    >>> print(visible("report\x1b[2J\nready"))
    report\x1b[2J\nready
    """
    if most is not None and len(text) > most:
        text = f"{text[: most - 3]}..."
    if text.isprintable():
        return text
    return "".join(one if one in keep or not _is_hidden(one) else _escape(one) for one in text)


def quoted(name: object) -> str:
    """Return a name in quotes, on one line and not too long, to stand inside a message."""
    return visible(repr(name), most=LONGEST_SHOWN)


def describe_failure(error: BaseException) -> str:
    """Return where an error came from and what it says, for a log: the lines of code, then one line.

    Python's own traceback writes an error's text as it is, whoever wrote what it quotes.
    """
    code = "".join(traceback.format_tb(error.__traceback__))
    return f"{code}{type(error).__name__}: {visible(str(error), most=5 * LONGEST_SHOWN)}"


def _is_hidden(character: str) -> bool:
    return character not in _JOINERS and unicodedata.category(character) in _HIDDEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
