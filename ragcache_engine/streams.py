"""An answer on its way from the engine's loop to its reader, who may be a thread or a coroutine."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from ragcache_engine.values import Answer, Piece

Item = Piece | Exception | None
"""What travels: pieces, then None; or an error."""

Connect = Callable[[Callable[[Item], None]], Callable[[], None]]
"""Starts a request, given a callback for its items; returns what cancels it. From any thread."""


def join_pieces(pieces: Sequence[Piece]) -> Answer:
    """The whole answer. pieces: all of one stream, so the last one has usage and finish_reason."""
    last = pieces[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    return Answer(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        finish_reason=last.finish_reason,
        usage=last.usage,
    )


class AnswerStream(Iterator[Piece]):
    """An answer as it is made, for synchronous callers: an iterator of pieces.

    Closing it early, leaving its `with` block or dropping it cancels the request, and what it held
    in the engine is freed. Iterating raises the errors that RAGCacheEngine.stream names.
    """

    def __init__(self, connect: Connect, keep_alive: object = None) -> None:
        """keep_alive: held as long as the stream, so that its source is not closed under it."""
        self._cancel: Callable[[], None] | None = None
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._keep_alive = keep_alive
        self._cancel = connect(self._items.put)

    def __next__(self) -> Piece:
        if self._cancel is None:
            raise StopIteration
        item = self._items.get()
        if self._cancel is None:  # closed by another thread meanwhile
            raise StopIteration
        if isinstance(item, Piece):
            return item
        self._cancel = None
        if item is None:
            raise StopIteration
        raise item

    def answer(self) -> Answer:
        """Read what is left and return it as one answer: all of it, if nothing was read before."""
        return join_pieces(list(self))

    def close(self) -> None:
        """Cancel the request if it still runs. A second call does nothing."""
        cancel, self._cancel = self._cancel, None
        if cancel:
            cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


async def read_async(connect: Connect) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of one answer in the caller's event loop; closing cancels the request."""
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[Item] = asyncio.Queue()

    def put(item: Item) -> None:
        with suppress(RuntimeError):  # the reader's loop is closed: nobody reads any more
            loop.call_soon_threadsafe(items.put_nowait, item)

    cancel = connect(put)
    try:
        while (item := await items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        cancel()
