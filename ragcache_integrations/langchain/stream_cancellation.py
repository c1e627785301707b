"""A model's stream that ends when the chain around it is left, and not only when its answer does.

Closing the stream of a chain should stop its model. But each step that stands behind another in a
synchronous chain, such as an output parser, reads what it was fed to the end when it is closed, only to
tell tracers of it: so the model would go on for as long as its answer takes, and whoever closed the
stream would wait. (Asynchronous chains close their steps, and need none of this.)

LangChain does not say which of its readings are of that kind, so they are told by who reads. While a
chain runs, every step that read the first piece also waits for each later one, one inside the other.
Once it is left, the outer ones are gone, and the step that was left reads by itself, past what it would
do to the pieces. Where that cannot be seen, as it may be in another release, the stream is read on.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")

_STEP_FUNCTION = ("langchain_core.runnables.base", "_transform_stream_with_config")
_HANDOVER_FUNCTIONS = ("transform", _STEP_FUNCTION[1])
"""What stands at the end of one step, before the next."""
_TEE_FUNCTION = "tee_peer"
"""What reads for several branches of a chain: if one is left, the others may want more."""


class CancellableStream(Iterator[T], Generic[T]):
    """The pieces of a stream, which is closed by whoever reads it only to have read it."""

    def __init__(self, pieces: Iterator[T]) -> None:
        self._pieces = pieces
        self._first_readers: list[int] | None = None

    def __next__(self) -> T:
        readers = _waiting_readers(sys._getframe(1), self._first_readers)
        if self._first_readers is None:
            self._first_readers = list(reversed(readers))
        elif _is_abandoned(self._first_readers, readers):
            self.close()
            raise StopIteration
        return next(self._pieces)

    def close(self) -> None:
        if isinstance(self._pieces, Generator):
            self._pieces.close()


def _is_abandoned(first_readers: list[int], readers: dict[int, bool]) -> bool:
    """Whether the outermost reader that remains, of those around which one is gone, reads by itself.

    first_readers: outermost first. readers: see `_readers`.
    """
    is_gone = False
    for reader in first_readers:
        if is_gone and reader in readers:
            return readers[reader]
        is_gone = is_gone or reader not in readers
    return False


def _waiting_readers(frame: FrameType | None, first_readers: list[int] | None) -> dict[int, bool]:
    """The steps that wait for a piece, innermost first, and whether each reads by itself.

    Empty if branches share it. What stands around the first of first_readers is left out.
    """
    outermost = first_readers[0] if first_readers else None
    readers: dict[int, bool] = {}
    inner = "transform"  # the model's own
    while frame:
        name = frame.f_code.co_name
        if name == _TEE_FUNCTION:
            return {}
        if (frame.f_globals.get("__name__"), name) == _STEP_FUNCTION:
            readers[id(frame)] = inner in _HANDOVER_FUNCTIONS
            if id(frame) == outermost:
                break
        inner, frame = name, frame.f_back
    return readers
