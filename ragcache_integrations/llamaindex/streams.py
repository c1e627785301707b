"""Streams that report to LlamaIndex's callbacks and still end when their reader leaves.

LlamaIndex's callback decorators wrap a stream in a generator that does not close the stream when it is
closed itself. They also give the callbacks an exception whose frames keep the stream alive. So after the
reader has left, the request would run to its end. The decorators here close the stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, closing
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

Callback = Callable[..., Any]
"""What llm_completion_callback() and llm_chat_callback() return: a decorator of methods."""

Streaming = Callable[P, Generator[T, None, None]]
AsyncStreaming = Callable[P, Coroutine[Any, Any, AsyncGenerator[T, None]]]


def report_stream(callback: Callback) -> Callable[[Streaming[P, T]], Streaming[P, T]]:
    """Decorate a method that returns a stream, as `callback` would."""

    def decorate(method: Streaming[P, T]) -> Streaming[P, T]:
        @wraps(method)
        def reporting(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
            begun: list[Generator[T, None, None]] = []

            def begin(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
                begun.append(method(*args, **kwargs))
                return begun[0]

            reported = callback(begin)(*args, **kwargs)
            stream = _yield_and_close(reported, begun[0])
            next(stream)  # a generator that has not begun runs nothing when it is closed
            return cast("Generator[T, None, None]", stream)

        return reporting

    return decorate


def report_astream(
    callback: Callback,
) -> Callable[[AsyncStreaming[P, T]], AsyncStreaming[P, T]]:
    """Decorate a coroutine method that returns a stream, as `callback` would."""

    def decorate(method: AsyncStreaming[P, T]) -> AsyncStreaming[P, T]:
        @wraps(method)
        async def reporting(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
            begun: list[AsyncGenerator[T, None]] = []

            async def begin(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
                begun.append(await method(*args, **kwargs))
                return begun[0]

            reported = await callback(begin)(*args, **kwargs)
            return _ayield_and_close(reported, begun[0])

        return reporting

    return decorate


def release_when_closed(tokens: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield the tokens of a generator that nobody else holds; let go of it when closed.

    LlamaIndex's own generator of tokens holds its stream in a closure, and closes it only by letting go.
    From Python 3.13 on, a closed generator keeps its closure until it is itself deleted.
    """
    with closing(tokens):  # in this block, `close` runs this function to its end
        yield from tokens


def _yield_and_close(
    reported: Generator[T, None, None], stream: Generator[T, None, None]
) -> Generator[T | None, None, None]:
    """Yield None, and then what is reported; close the stream whenever this is closed."""
    with closing(stream):
        yield None
        yield from reported


async def _ayield_and_close(
    reported: AsyncGenerator[T, None], stream: AsyncGenerator[T, None]
) -> AsyncGenerator[T, None]:
    async with aclosing(stream), aclosing(reported):
        async for item in reported:
            yield item
