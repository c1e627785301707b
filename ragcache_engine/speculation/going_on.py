"""Go on from the first token that a guess has generated, with the options of the adopting prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.speculation.generation import join_deltas
from ragcache_engine.values import FinishReason, SamplingOptions

BROKEN_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""How a tokenizer writes a character of which a later token has the rest."""


async def go_on(
    backend: Backend,
    request: BackendRequest,
    guessed: AsyncGenerator[Delta, None],
    context_tokens: int,
) -> AsyncGenerator[Delta, None]:
    """Yield the answer to the request: the guessed token first, then what the backend adds to it.

    guessed: the deltas of a guess of this answer's first token. What they say of the prompt's cache hits
      is said of the answer; for the rest, all that the guess has computed is cached.
    context_tokens: the size of the model's context, which ends an answer too.
    Raises what the guess or the backend fails with.
    """
    async with aclosing(guessed):
        deltas = [delta async for delta in guessed]
    first, room = Delta("", ()), context_tokens - request.expected_tokens
    if deltas:
        first = end_as_wanted(join_deltas(deltas), request.options, room)
    if not first.is_start:
        yield first
    if first.finish_reason:
        return
    rest = request.continued_after(first.token_ids, "-rest") if first.token_ids else request
    async with aclosing(backend.generate(replace(rest, goes_on=True))) as deltas_of_rest:
        async for delta in deltas_of_rest:
            yield replace(
                delta, cached=first.cached, why_exact=first.why_exact, sources=first.sources
            )


def end_as_wanted(token: Delta, wanted: SamplingOptions, room: int) -> Delta:
    """Return the guessed token as the first one of the wanted answer, which may end with it.

    room: the most tokens that the answer may have in the model's context.
    A token whose text is not settled is left out, so that the answer has to begin anew: one with a part
    of a character, or with what may become a stop string. The delta then tells of the prompt alone.
    """
    ends = [at for stop in wanted.stop if (at := token.text.find(stop)) >= 0]
    if ends:
        return replace(token, text=token.text[: min(ends)], finish_reason=FinishReason.STOP)
    if 1 in (wanted.max_tokens, room) or token.finish_reason is FinishReason.STOP:
        return token
    if _is_settled(token.text, wanted.stop):
        return replace(token, finish_reason=None)
    return replace(token, text="", token_ids=(), finish_reason=None)


def _is_settled(text: str, stop: tuple[str, ...]) -> bool:
    """Return whether all of the text belongs to the answer, whatever comes after it."""
    may_begin_stop = any(
        text.endswith(word[:length]) for word in stop for length in range(1, len(word))
    )
    return bool(text) and not text.endswith(BROKEN_CHARACTER) and not may_begin_stop
