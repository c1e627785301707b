"""Carries an answer from the engine's loop to its reader, which is a thread or a coroutine."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Self

from ragcache_engine.errors import InvalidArgument
from ragcache_engine.values import Answer, Piece

Item = Piece | Exception | None
"""What the reader gets: pieces, and then None or the error that ended the answer."""

START = Piece("", ())
"""The item that says that the request was taken, from backends that check prompts themselves."""

Connect = Callable[[Callable[[Item], None]], Callable[[], None]]
"""Starts a request, given a callback for its items; returns a function that cancels it.

Any thread may call either.
"""


def join_pieces(pieces: Sequence[Piece]) -> Answer:
    """Return the whole answer. pieces: all of one stream, so the last has a usage and a finish_reason."""
    last = pieces[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    return Answer(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=tuple(one for piece in pieces for one in piece.logprobs),
        reasoning="".join(piece.reasoning for piece in pieces),
    )


class AnswerStream(Iterator[Piece]):
    """An answer while it is generated, for synchronous callers: an iterator of pieces.

    Closing the stream early, leaving its `with` block or dropping it cancels the request and frees what
    the request held in the engine. Iterating raises the errors that RAGCacheEngine.stream names.
    """

    def __init__(
        self,
        connect: Connect,
        require_readable: Callable[[], None],
        keep_alive: object = None,
        *,
        has_start: bool = False,
    ) -> None:
        """require_readable: raises an error where no item will ever come, as in a forked child.

        keep_alive: an object that the stream keeps alive, such as the engine it comes from.
        has_start: wait until the request was taken, and raise here if it was refused.
        """
        self._cancel: Callable[[], None] | None = None
        self._require_readable = require_readable
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._keep_alive = keep_alive
        self._first: Item = None
        self._cancel = connect(self._items.put)
        if has_start:
            self._wait_for_start()

    def _wait_for_start(self) -> None:
        try:
            first = self._items.get()
        except BaseException:  # such as a KeyboardInterrupt
            self.close()
            raise
        if first is None or isinstance(first, Exception):
            self._cancel = None
        if isinstance(first, Exception):
            raise first
        if first is not START:
            self._first = first

    def __next__(self) -> Piece:
        if self._cancel is None:
            raise StopIteration
        self._require_readable()
        if (item := self._first) is not None:
            self._first = None
        else:
            item = self._get()
        if self._cancel is None:  # another thread has closed the stream meanwhile
            raise StopIteration
        if isinstance(item, Piece):
            return item
        self._cancel = None
        if item is None:
            raise StopIteration
        raise item

    def _get(self) -> Item:
        """Return the next item; a second START, of a second attempt, is none."""
        while (item := self._items.get()) is START:
            pass
        return item

    def answer(self) -> Answer:
        """Read all remaining pieces and return them as one answer.

        Raises InvalidArgument if there are none: the stream was read to its end, or closed.
        """
        pieces = list(self)
        if not pieces:
            raise InvalidArgument(
                "the stream has no pieces left: it was read to its end, or closed. Call answer() first"
            )
        return join_pieces(pieces)

    def close(self) -> None:
        """Cancel the request if it still runs. A second call does nothing."""
        cancel, self._cancel = self._cancel, None
        if cancel:
            cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


async def read_async(connect: Connect) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of one answer on the caller's event loop. Closing it cancels the request."""
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[Item] = asyncio.Queue()

    def put(item: Item) -> None:
        with suppress(RuntimeError):  # the reader's loop is closed: nobody reads
            loop.call_soon_threadsafe(items.put_nowait, item)

    cancel = connect(put)
    try:
        while (item := await items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            if item is not START:
                yield item
    finally:
        cancel()
