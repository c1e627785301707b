"""Whatever searches and prompts do, the pipeline's books balance and answers are right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from itertools import count
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine import Document, GenerationFailed, SamplingOptions, Template
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.prompt import TemplateBook
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.speculation import Pipeline, TrackedSearch

TEMPLATE = Template("Texts: ", "; ", " Asked: {question}")
DOCUMENTS = [Document(name, f"{name} is a document about {name}.") for name in "abc"]
OPTIONS = [
    SamplingOptions(max_tokens=4),
    SamplingOptions(max_tokens=9),
    SamplingOptions(max_tokens=1),
    SamplingOptions(max_tokens=9, stop=("again", "what is not")),
]
MOST, EXPIRY_S = 3, 10.0

documents = st.lists(st.sampled_from(DOCUMENTS), max_size=2)
searches = st.integers(0, 3)
actions = st.one_of(
    st.tuples(st.just("stage"), searches, documents),
    st.tuples(st.just("found"), searches, documents),
    st.tuples(st.just("candidates"), searches, documents),
    st.tuples(st.just("abandon"), searches),
    st.tuples(st.just("prompt"), searches, documents, st.sampled_from(OPTIONS), st.booleans()),
    st.tuples(st.just("expected prompt"), searches, st.sampled_from(OPTIONS), st.booleans()),
    st.tuples(st.just("break")),
    st.tuples(st.just("let time pass"), st.floats(0, 8)),
    st.tuples(st.just("let it work")),
)


def reply(prompt: str) -> str:
    return f"{crc32(prompt.encode())} is what it says, again and again and again."


class World:
    """A pipeline with its backend, and what was asked of it."""

    def __init__(self, *, is_automatic: bool = False) -> None:
        self.breaks = False
        self.backend = MemoryBackend(reply, fault=self._fault, step_tokens=8)
        self.numbers = count()
        self.pipeline = Pipeline(
            self.backend,
            TemplateBook(),
            is_automatic=is_automatic,
            next_request_id=lambda: f"speculation-{next(self.numbers)}",
            sign_of_life=lambda: None,
            unclaimed_s=EXPIRY_S,
            most_unclaimed=MOST,
        )
        self.searches: dict[int, TrackedSearch] = {}

    def _fault(self, step: int) -> None:
        if self.breaks:
            self.breaks = False
            raise GenerationFailed("broken")

    def search(self, number: int) -> TrackedSearch:
        return self.searches.setdefault(
            number, self.pipeline.track_search(f"Question {number}?", None, TEMPLATE, OPTIONS[0])
        )

    async def act(self, what: str, *details: object) -> None:
        match what, *details:
            case "stage" | "found", int(number), list(found):
                self.pipeline.stage(self.search(number), found, final=what == "found")
                await asyncio.sleep(0.001)
            case "candidates", int(number), list(found):
                self.pipeline.candidates(self.search(number), found)
                await asyncio.sleep(0.001)
            case "abandon", int(number):
                self.pipeline.abandon(self.search(number))
                del self.searches[number]
            case "prompt", int(number), list(found), SamplingOptions() as options, bool(named):
                await self.ask(number, found, options, named)
            case "expected prompt", int(number), SamplingOptions() as options, bool(named):
                await self.ask(number, self.search(number).documents or (), options, named)
            case "let time pass", float(seconds):
                self.backend.advance(seconds)
            case "break", *_:
                self.breaks = True
            case _:
                await asyncio.sleep(0.002)

    async def ask(
        self, number: int, found: Sequence[Document], options: SamplingOptions, named: bool
    ) -> None:
        search = self.search(number)
        prompt = self.backend.tokenize(TEMPLATE(search.question, found))
        request = BackendRequest(f"request-{next(self.numbers)}", prompt, (), options)
        text = ""
        with self.pipeline.claim(request, search.number if named else None) as claim:
            try:
                async with aclosing(claim.begun or self.backend.generate(request)) as deltas:
                    async for delta in deltas:
                        text += delta.text
            except GenerationFailed:
                return  # retry.py would try again
            finally:
                if named:
                    del self.searches[number]
        reply_text = reply(prompt.text)
        for stop in options.stop:
            reply_text = reply_text.split(stop, 1)[0]
        expected = self.backend.tokenize(reply_text)
        assert text == self.backend.detokenize(expected.token_ids[: options.max_tokens])

    def check(self) -> None:
        stats = self.pipeline.stats
        ended = stats.adopted + stats.prefilled + stats.cancelled + stats.expired + stats.failed
        assert ended <= stats.started <= ended + self.pipeline.unclaimed
        assert self.pipeline.unclaimed <= min(MOST, len(self.searches))
        assert self.pipeline.prefilling <= self.pipeline.unclaimed


@settings(max_examples=examples(50))
@given(st.lists(actions, min_size=10, max_size=40))
@pytest.mark.slow
def test_the_books_balance_and_answers_are_right(acted: list[tuple[object, ...]]):
    async def live() -> None:
        world = World()
        world.pipeline.use_limits(await world.backend.start())
        for what, *details in acted:
            await world.act(str(what), *details)
            world.check()
        for search in world.searches.values():
            world.pipeline.stage(search, DOCUMENTS[:1], final=True)
        world.backend.advance(EXPIRY_S)
        await asyncio.sleep(0.002)
        for search in world.searches.values():
            world.pipeline.abandon(search)
        assert world.pipeline.unclaimed == 0
        assert world.pipeline.prefilling == 0
        await world.pipeline.close()
        assert world.backend.running == 0
        await world.backend.close()

    asyncio.run(live())


def test_what_prompts_take_in_a_busy_moment_leads_to_no_guess_in_an_idle_one():
    async def live() -> None:
        world = World(is_automatic=True)
        pipeline = world.pipeline
        pipeline.use_limits(await world.backend.start())
        other = pipeline.track_search("Something else?", "another chain", TEMPLATE, OPTIONS[0])
        pipeline.stage(other, DOCUMENTS, final=False)
        assert pipeline.unclaimed == 1  # a guess fills the step
        await found_and_asked_later(world)
        pipeline.abandon(other)
        for _ in range(3):
            pipeline.stage(world.search(0), DOCUMENTS[:1], final=True)
            assert pipeline.unclaimed == 0
            await world.ask(0, DOCUMENTS[:1], OPTIONS[0], named=True)
        await found_and_asked_later(world)
        pipeline.stage(world.search(0), DOCUMENTS[:1], final=True)
        assert pipeline.unclaimed == 1
        await pipeline.close()
        await world.backend.close()

    async def found_and_asked_later(world: World) -> None:
        world.pipeline.stage(world.search(0), DOCUMENTS[:1], final=True)
        world.backend.advance(0.5)
        await world.ask(0, DOCUMENTS[:1], OPTIONS[0], named=True)

    asyncio.run(live())
