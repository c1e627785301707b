"""A model's stream that ends when the chain around it is left, and not only when its answer does.

Closing the stream of a chain should stop its model. But each step that stands behind another in a
synchronous chain, such as an output parser, reads what it was fed to the end when it is closed, only to
tell tracers of it: so the model would go on for as long as its answer takes, and whoever closed the
stream would wait. (Asynchronous chains close their steps, and need none of this.)

LangChain does not say which of its readings are of that kind, so they are told by two signs together:
the step's own method reads, not what transforms the pieces; and it does so outside the context in which
the step runs. Where either is missing, as it may be in another release, the stream is read to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")

_STEP = ("langchain_core.runnables.base", "_transform_stream_with_config")
_HANDS_ON = "transform"
"""What stands between a step and the model does nothing but hand pieces on, such as a binding."""

_read_in: ContextVar[frozenset[object]] = ContextVar("_read_in", default=frozenset())
"""The streams whose first piece was read in this context, or in one that this is a copy of."""


class StoppedWhenLeft(Iterator[T], Generic[T]):
    """The pieces of a stream. It is closed by who reads it only to have read it."""

    def __init__(self, pieces: Iterator[T]) -> None:
        self._pieces = pieces
        self._name = object()
        self._step = 0

    def __next__(self) -> T:
        step = _reading_step(sys._getframe(1))
        if step and step == self._step and self._name not in _read_in.get():
            self.close()
            raise StopIteration
        try:
            piece = next(self._pieces)
        except BaseException:
            _read_in.set(_read_in.get() - {self._name})
            raise
        if step and step != self._step:
            # A step reads the first piece by itself, and then makes a copy of its context to run in.
            self._step = step
            _read_in.set(_read_in.get() | {self._name})
        return piece

    def close(self) -> None:
        if isinstance(self._pieces, Generator):
            self._pieces.close()


def _reading_step(frame: FrameType | None) -> int:
    """Which step's own method reads; 0 if none does."""
    while frame and frame.f_code.co_name == _HANDS_ON:
        frame = frame.f_back
    if frame and (frame.f_globals.get("__name__"), frame.f_code.co_name) == _STEP:
        return id(frame)
    return 0
