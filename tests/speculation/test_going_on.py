"""An answer that goes on from a guessed token is the one that would have come without the guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from ragcache_engine import FinishReason, SamplingOptions
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.speculation.going_on import end_as_wanted, go_on
from ragcache_engine.values import CachedTokens, TokenizedPrompt

LONG = SamplingOptions(max_tokens=40)
ROOM = 100
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


def token(text: str, reason: FinishReason = LENGTH) -> Delta:
    return Delta(text, (7,), CachedTokens(device=5), reason)


def test_a_longer_answer_goes_on_after_the_token():
    assert end_as_wanted(token(" The"), LONG, ROOM) == Delta(" The", (7,), CachedTokens(device=5))


@pytest.mark.parametrize(
    ("text", "guessed_end", "wanted", "whole", "end"),
    [
        (" The", LENGTH, SamplingOptions(max_tokens=1), " The", LENGTH),
        ("", STOP, LONG, "", STOP),
        ("Yes. No", LENGTH, SamplingOptions(stop=("No", ".")), "Yes", STOP),
        ("Yes.", LENGTH, SamplingOptions(max_tokens=1, stop=(".",)), "Yes", STOP),
    ],
    ids=["its length", "end of text", "the earliest stop string", "a stop string before length"],
)
def test_an_answer_ends_with_its_first_token_where_it_would(
    text: str, guessed_end: FinishReason, wanted: SamplingOptions, whole: str, end: FinishReason
):
    ended = end_as_wanted(token(text, guessed_end), wanted, ROOM)
    assert (ended.text, ended.token_ids, ended.finish_reason) == (whole, (7,), end)


@pytest.mark.parametrize(
    ("text", "stop"),
    [("", ()), ("na�", ()), ("so\n", ("\n\n",)), ("a <", ("</s>", "!"))],
    ids=["no text yet", "part of a character", "half a stop string", "its first character"],
)
def test_a_token_whose_text_is_not_settled_is_left_out(text: str, stop: tuple[str, ...]):
    left = end_as_wanted(token(text), SamplingOptions(stop=stop), ROOM)
    assert left.is_start
    assert left.cached == CachedTokens(device=5)


class Rest:
    """A backend that is asked for the rest of an answer."""

    def __init__(self) -> None:
        self.asked: list[BackendRequest] = []

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.asked.append(request)
        yield Delta(" rest", (8,), CachedTokens(device=9))
        yield Delta(".", (9,), CachedTokens(device=1, host=8), STOP)


def answer(
    guessed: list[Delta], wanted: SamplingOptions, context_tokens: int = 100
) -> tuple[list[Delta], Rest]:
    async def deltas() -> AsyncGenerator[Delta, None]:
        for delta in guessed:
            yield delta

    async def collect() -> list[Delta]:
        request = BackendRequest("r", TokenizedPrompt("why", (1, 2), ((0, 1), (1, 3))), (), wanted)
        going_on = go_on(backend, request, deltas(), context_tokens)  # type: ignore[arg-type]
        return [delta async for delta in going_on]

    backend = Rest()
    return asyncio.run(collect()), backend


def test_the_rest_is_asked_for_once_and_tells_of_the_guess():
    said, backend = answer([token(" The")], LONG)
    assert "".join(delta.text for delta in said) == " The rest."
    assert [delta.cached for delta in said] == [CachedTokens(device=5)] * 3
    (rest,) = backend.asked
    assert (rest.tokens.token_ids, rest.options.max_tokens, rest.goes_on) == ((1, 2, 7), 39, True)
    assert rest.request_id != "r"


def test_where_the_token_is_left_out_the_whole_answer_is_asked_for():
    said, backend = answer([token("�")], LONG)
    assert "".join(delta.text for delta in said) == " rest."
    assert said[-1].cached == CachedTokens(device=5)
    (rest,) = backend.asked
    assert (rest.tokens.token_ids, rest.options, rest.goes_on) == ((1, 2), LONG, True)


def test_nothing_more_is_asked_for_where_the_token_is_all():
    said, backend = answer([token(" The", STOP)], LONG)
    assert [delta.finish_reason for delta in said] == [STOP]
    assert not backend.asked


def test_an_answer_ends_where_the_context_does():
    said, backend = answer([token(" The")], SamplingOptions(max_tokens=None), context_tokens=3)
    assert [delta.finish_reason for delta in said] == [LENGTH]
    assert not backend.asked


def test_a_guess_that_ended_without_a_token_leaves_the_whole_answer():
    said, backend = answer([], LONG)
    assert "".join(delta.text for delta in said) == " rest."
    assert len(backend.asked) == 1
