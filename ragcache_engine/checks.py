"""Checks of what callers pass in: every door of the engine refuses bad values before anything starts.

vLLM's processes read their messages strictly. A value of a wrong type would end the thread that reads
them, and with it every later request.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, TypeVar

from ragcache_engine.errors import InvalidArgument, PromptTooLong

T = TypeVar("T")

LONGEST_SALT, NOT_IN_SALTS = 128, frozenset("@/\\\0")
"""What vLLM takes as one: see validate_cache_salt in its entrypoints/generate/base/protocol.py."""

CHARACTERS_PER_TOKEN = 16
"""How many characters a prompt may have for each token of the model's context. Texts have three to six:
whoever sends more wants megabytes tokenised only to hear that they are too many."""

LARGEST_INT = (1 << 31) - 1

LONGEST_ID = 512
"""The most characters of a name that a server takes from its clients: a document's, or a tenant's."""


def require_text(value: Any, name: str) -> str:
    """Return a string that can be encoded. name: what to call the value in the error.

    Raises InvalidArgument.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a string, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name} holds half a character (a lone surrogate) at position {error.start}: decode the "
            f'text with errors="replace", or leave the character out'
        ) from None
    return value


def require_short_text(value: Any, name: str) -> str:
    """Return a name of at most LONGEST_ID characters. Raises InvalidArgument."""
    if len(require_text(value, name)) > LONGEST_ID:
        raise InvalidArgument(
            f"{name} has {len(value):,} characters, and a server takes {LONGEST_ID}: shorten it, or take "
            f"a digest of it"
        )
    return str(value)


def require_short_prompt(characters: int, context_tokens: int) -> None:
    """Raise PromptTooLong for more characters than a context has room for, before they are tokenised."""
    most = CHARACTERS_PER_TOKEN * context_tokens
    if characters > most:
        raise PromptTooLong(
            f"the prompt has {characters:,} characters, and one for the model's context of "
            f"{context_tokens:,} tokens has {most:,} at most; retrieve fewer or shorter documents, or "
            f"raise the model's max_model_len"
        )


def require_tenant(value: Any) -> str | None:
    """Return the name of a tenant, or None. Raises InvalidArgument.

    An empty name is refused. It is most likely a user id that is missing, and vLLM would let it share
    the tensors of requests without a tenant.
    """
    if value is None:
        return None
    if require_text(value, "tenant"):
        return str(value)
    raise InvalidArgument("tenant must not be empty; None is a request without a tenant")


def require_whole_number(
    value: Any, name: str, least: int | None = None, most: int = LARGEST_INT
) -> int:
    """Return a whole number, at least `least` and at most `most`. Raises InvalidArgument.

    numpy's integers are whole numbers; True and 3.0 are not.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise InvalidArgument(f"{name} must be a whole number, got {shown(value)}")
    if least is not None and number < least:
        raise InvalidArgument(f"{name} must be at least {least}, got {number}")
    if number > most:
        raise InvalidArgument(f"{name} must be at most {most}, got {shown(number)}")
    return number


def require_number(value: Any, name: str) -> float:
    """Return a finite number as a float. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgument(f"{name} must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} must be a finite number, got {shown(value)}")
    return number


def require_duration(value: Any, name: str) -> None:
    """Raise InvalidArgument unless this is a number of seconds above 0, or None."""
    if value is not None and require_number(value, name) <= 0:
        raise InvalidArgument(f"{name} must be above 0 seconds, got {shown(value)}")


def require_switch(value: Any, name: str) -> bool:
    """Return True or False. Raises InvalidArgument for anything else."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, got {shown(value)}")
    return value


def require_instance(value: Any, kind: type[T], name: str, hint: str = "") -> T:
    """Return a value of this kind. hint: what to pass instead. Raises InvalidArgument."""
    if not isinstance(value, kind):
        advice = f"; {hint}" if hint else ""
        wanted, got = _tell_apart(kind, value)
        raise InvalidArgument(f"{name} must be a {wanted}, got {got}{advice}")
    return value


def require_items(values: Any, kind: type[T], name: str, hint: str = "") -> tuple[T, ...]:
    """Return several values of this kind as a tuple. A string or a mapping is no such list.

    Raises InvalidArgument.
    """
    if (
        isinstance(values, str | bytes | Mapping)
        or not isinstance(values, Iterable)
        or _has_same_name(kind, values)  # one document of a framework, whose fields can be iterated
    ):
        wanted, got = _tell_apart(kind, values)
        raise InvalidArgument(
            f"{name} must be a sequence of {wanted}, got {got}" + (f"; {hint}" if hint else "")
        )
    return tuple(
        require_instance(value, kind, f"{name}[{at}]", hint) for at, value in enumerate(values)
    )


def require_hashable(value: T, name: str) -> T:
    """Return a value that can be a key. Raises InvalidArgument."""
    try:
        hash(value)
    except TypeError:
        raise InvalidArgument(f"{name} must be hashable, got {shown(value)}") from None
    return value


def require_salt(value: object) -> None:
    """Raise InvalidArgument for a text that vLLM's server takes as no `cache_salt`."""
    if isinstance(value, str) and (len(value) > LONGEST_SALT or not NOT_IN_SALTS.isdisjoint(value)):
        raise InvalidArgument(
            f"a cache_salt, a server's name of a tenant, has {LONGEST_SALT} characters at most, with the "
            f"tenant of the key before it, and none of @, / and \\: {shown(value)} has {len(value)}"
        )


def _has_same_name(kind: type, value: Any) -> bool:
    """Return whether the value is of another class of the same name, such as a framework's Document."""
    return type(value) is not kind and type(value).__name__ == kind.__name__


def _tell_apart(kind: type, value: Any) -> tuple[str, str]:
    """Return what to call the wanted kind and the value, so that the two do not look the same."""
    if not _has_same_name(kind, value):
        return kind.__name__, shown(value)
    package = kind.__module__.partition(".")[0]
    return f"{package}.{kind.__name__}", f"a {type(value).__module__}.{type(value).__name__}"


def shown(value: Any) -> str:
    """Write a value and its type, in few characters."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a whole number of more than 128 bits"
    try:
        text = repr(value)
    except Exception:  # the error is about the value, not about its repr
        text = "<no repr>"
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"
