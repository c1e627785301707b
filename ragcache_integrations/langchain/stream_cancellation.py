"""A model's stream that also ends when the reader leaves the chain before the answer is complete.

Closing the stream of a chain should stop its model. But in a synchronous chain, each step that
follows another, such as an output parser, reads its input to the end when it is closed, only to
report the input to tracers. The model would go on until its answer is complete, and whoever closed
the stream would wait. (Asynchronous chains close their steps and need none of this.)

LangChain does not mark such reads, so this module recognises them by looking at the call stack.
While a chain runs, every step that asked for the first piece is on the stack again for each later
piece, each step inside the next. When the reader leaves, the outer steps disappear from the stack,
and the step that was closed reads directly: the function that processes its pieces is missing from
the stack too. If the stack does not look as expected, as may happen with another release of
LangChain, the stream is read to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")

_STEP_FUNCTION = ("langchain_core.runnables.base", "_transform_stream_with_config")
_OUTER_FUNCTIONS = ("transform", _STEP_FUNCTION[1])
"""A step's outermost functions. If the next step reads directly, it calls one of them itself."""
_TEE_FUNCTION = "tee_peer"
"""The function that reads for several branches of a chain. When one branch ends, others may go on."""


class CancellableStream(Iterator[T], Generic[T]):
    """The pieces of a stream; closes it when it is read only for the tracers."""

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
    """Tell whether the reader left: an outer step is gone, and the next one inside it reads directly.

    first_readers: the steps that read the first piece, outermost first. readers: see
    `_waiting_readers`.
    """
    is_gone = False
    for reader in first_readers:
        if is_gone and reader in readers:
            return readers[reader]
        is_gone = is_gone or reader not in readers
    return False


def _waiting_readers(frame: FrameType | None, first_readers: list[int] | None) -> dict[int, bool]:
    """Return the chain's waiting steps, innermost first, and whether each reads directly.

    Returns nothing if several branches of the chain share the stream. Steps outside the first of
    first_readers are left out.
    """
    outermost = first_readers[0] if first_readers else None
    readers: dict[int, bool] = {}
    inner = "transform"  # the name of the model's own method
    while frame:
        name = frame.f_code.co_name
        if name == _TEE_FUNCTION:
            return {}
        if (frame.f_globals.get("__name__"), name) == _STEP_FUNCTION:
            readers[id(frame)] = inner in _OUTER_FUNCTIONS
            if id(frame) == outermost:
                break
        inner, frame = name, frame.f_back
    return readers
