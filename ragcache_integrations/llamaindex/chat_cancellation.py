"""Cancels the answer of a chat engine when its reader leaves.

A chat engine's own thread or task reads the answer into the history. The user reads the tokens that it
hands over. A user who leaves, by closing the stream or by being cancelled, then waits for that thread or
task, and so for the whole answer. LlamaIndex tells neither of them that the user left.

So when a history is written from a stream of ours, the stream puts a stand-in in the place of the thread
or task that the user would wait for. The stand-in cancels the request if it is waited for because of
an exception that means leaving, such as GeneratorExit or CancelledError. The answer then ends, and the
history keeps the part that was made. Whoever waits for the history otherwise gets the whole answer.

The stand-in's place is in the chat engine's response, a StreamingAgentChatResponse, whose fields are
public. Only the call stack leads to it from a stream. If the stack does not look as expected, as may
happen with another release of LlamaIndex, the answer goes on to its end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from llama_index.core.chat_engine.types import StreamingAgentChatResponse

_WRITERS = ("write_response_to_history", "awrite_response_to_history")
"""The methods of a StreamingAgentChatResponse that read the answer into the history."""


def cancel_when_chat_is_left(cancel: Callable[[], None]) -> None:
    """Call `cancel` if the calling thread writes a chat engine's history, and its reader leaves."""
    response = _response_being_written()
    if response and (thread := response.write_response_to_history_thread):
        # Any: the stand-in does all that a thread does, but is none.
        stand_in: Any = _HistoryThread(thread, cancel)
        response.write_response_to_history_thread = stand_in


@contextmanager
def ended_when_chat_is_left() -> Iterator[None]:
    """End the block if the current task writes a chat engine's history, and its reader leaves.

    The task may wait only inside the block, as a chat engine's does while it reads an answer.
    """
    response = _response_being_written()
    task = response.awrite_response_to_history_task if response else None
    if response is None or task is None:
        yield
        return
    stand_in: Any = _HistoryTask(task)
    response.awrite_response_to_history_task = stand_in
    try:
        yield
    except asyncio.CancelledError:
        # Another cancellation, of the task itself, goes on.
        if not stand_in.is_left or task.uncancel():
            raise
    finally:
        stand_in.is_reading = False


class _HistoryThread:
    """The thread that writes the history, which also cancels the answer when the reader has left."""

    def __init__(self, thread: Thread, cancel: Callable[[], None]) -> None:
        self._thread = thread
        self._cancel = cancel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thread, name)

    def join(self, timeout: float | None = None) -> None:
        if _is_leaving():
            self._cancel()
        self._thread.join(timeout)


class _HistoryTask:
    """The task that writes the history, which also ends the answer when the reader has left."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.is_reading = True
        self.is_left = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def __await__(self) -> Generator[Any, None, None]:
        if not _is_leaving():
            return self._task.__await__()
        if self.is_reading and not self.is_left:
            self.is_left = True
            self._task.cancel()
        # Web servers cancel again and again. The history still gets its part of the answer.
        return asyncio.shield(self._task).__await__()


def _is_leaving() -> bool:
    """Tell whether an exception that ends more than a call, such as GeneratorExit, is under way."""
    error = sys.exception()
    return error is not None and not isinstance(error, Exception)


def _response_being_written() -> StreamingAgentChatResponse | None:
    """Return the response whose history the caller writes; None if it writes none."""
    frame = sys._getframe(1)
    while outer := frame.f_back:
        frame = outer
        if frame.f_code.co_name in _WRITERS:
            response = frame.f_locals.get("self")
            if isinstance(response, StreamingAgentChatResponse):
                return response
    return None
