"""Borrowing on real vLLM with the small real model, in float32, where equal tensors give equal tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import pytest

from ragcache_engine import (
    Answer,
    Corpus,
    Document,
    EngineConfig,
    InvalidArgument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.tiers.borrowing.plan import WhyExact

pytestmark = pytest.mark.vllm

RIVERS = ["Adur", "Brue", "Cam", "Dee", "Exe", "Frome", "Gade", "Hull"]
BUILT = ["bridge", "school", "church", "barn", "road"]


def town(number: int) -> Document:
    sentences = [
        f"In {1800 + 7 * at + number} its people built a {BUILT[(at + number) % 5]}."
        for at in range(4 + number % 3)
    ]
    text = (
        f"The town of Upper {RIVERS[number][::-1].lower()} lies by the river {RIVERS[number]}. It has "
        f"{100 + 37 * number} houses and a mill of {1700 + 13 * number}. {' '.join(sentences)}"
    )
    return Document(f"town-{number}", text)


TOWNS = [town(number) for number in range(8)]
ASKED = [
    ((0, 3, 5), "How many houses stand by the Dee?"),
    ((5, 3, 0), "When was the mill by the Frome built?"),
    ((1, 0, 3, 5), "By which river lies the town with 100 houses?"),
    ((7, 6, 4, 2), "What was built first?"),
    ((0, 1), "Which town is larger?"),
    ((6, 2, 7, 0, 1), "Name the rivers."),
]
OPTIONS = SamplingOptions(max_tokens=16)


@pytest.fixture(scope="module", params=["auto", "int8"])
def engine(request: pytest.FixtureRequest, demo_model: str) -> Iterator[RAGCacheEngine]:
    """Borrows from documents stored alone, and recomputes a tenth; a request may choose otherwise."""
    with RAGCacheEngine(settings(demo_model, donor_dtype=request.param)) as engine:
        yield engine


def settings(
    model: str,
    missing_donors: Literal["compute", "later"] = "compute",
    donor_dtype: Literal["auto", "int8"] = "auto",
) -> EngineConfig:
    return EngineConfig(
        donor_dtype=donor_dtype,
        model=model,
        backend="vllm",
        device_cache="300MiB",
        reuse="anywhere",
        recompute_ratio=0.1,
        donors="neighbours",
        missing_donors=missing_donors,
        speculation="off",
        vllm_args={"dtype": "float32", "max_model_len": 2048},
    )


def prompt_of(places: Sequence[int], question: str) -> tuple[str, list[Document]]:
    documents = [TOWNS[place] for place in places]
    texts = "\n\n".join(document.text for document in documents)
    return f"You answer from documents.\n\n{texts}\n\nQuestion: {question}\nAnswer:", documents


def ask(
    engine: RAGCacheEngine,
    places: Sequence[int],
    question: str,
    *,
    exact: bool = False,
    ratio: float | None = None,
) -> Answer:
    prompt, documents = prompt_of(places, question)
    return engine.generate(prompt, documents, OPTIONS, exact=exact, recompute_ratio=ratio)


def ask_all(
    engine: RAGCacheEngine, *, exact: bool = False, ratio: float | None = None
) -> list[Answer]:
    return [ask(engine, *asked, exact=exact, ratio=ratio) for asked in ASKED]


def tokens_of(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


def test_with_ratio_1_answers_are_exact_and_with_ratio_0_they_can_differ(engine: RAGCacheEngine):
    exact = tokens_of(ask_all(engine, exact=True))
    assert tokens_of(ask_all(engine, ratio=1)) == exact
    assert tokens_of(ask_all(engine, ratio=0)) != exact, "the prompts can tell a difference"


def test_an_answer_is_the_same_whatever_was_cached_before(engine: RAGCacheEngine):
    warm = tokens_of(ask_all(engine))
    for asked in range(len(ASKED)):
        engine.clear_cache()
        assert ask(engine, *ASKED[asked]).token_ids == warm[asked]


def test_an_answer_is_the_same_in_whatever_company(engine: RAGCacheEngine):
    alone = tokens_of(ask_all(engine))
    exact = tokens_of(ask_all(engine, exact=True))
    engine.clear_cache()

    async def ask_at_once() -> list[Answer]:
        prompts = [prompt_of(*asked) for asked in ASKED]
        return await asyncio.gather(
            *(engine.agenerate(*prompt, OPTIONS) for prompt in prompts),
            *(engine.agenerate(*prompt, OPTIONS, exact=True) for prompt in prompts),
        )

    together = tokens_of(asyncio.run(ask_at_once()))
    assert together == [*alone, *exact]


def test_a_penalty_of_one_answer_does_no_harm_to_donors_that_are_made_meanwhile(
    engine: RAGCacheEngine,
):
    engine.clear_cache()
    penalty = SamplingOptions(max_tokens=100, presence_penalty=0.5, repetition_penalty=1.1)

    async def ask_at_once() -> list[Answer]:
        prompts = [prompt_of(*asked) for asked in ASKED]
        long = asyncio.create_task(engine.agenerate("Tell a long story.", [], penalty))
        await asyncio.sleep(0.5)
        asked = [await engine.agenerate(*prompt, OPTIONS) for prompt in prompts]
        return [*asked, await long]

    *asked, long = asyncio.run(ask_at_once())
    assert long.text
    assert tokens_of(asked) == tokens_of(ask_all(engine))
    assert engine.stats().restarts == 0


def test_usage_tells_borrowed_from_exact_tokens_and_adds_up(engine: RAGCacheEngine):
    engine.clear_cache()
    first = ask(engine, (0, 3, 5), "Why?").usage
    assert [document.tier for document in first.reused] == [None, None, None]
    assert first.computed_tokens == first.prompt_tokens
    second = ask(engine, (5, 0, 3), "Why?").usage
    assert not second.is_exact
    assert [document.document for document in second.reused] == ["town-5", "town-0", "town-3"]
    assert second.borrowed.device > 0
    assert second.recomputed_tokens > 0
    spent = second.cached.total + second.borrowed.total + second.computed_tokens
    assert spent == second.prompt_tokens
    stats = engine.stats()
    assert stats.approximate > 0
    assert stats.borrowed.total >= second.borrowed.total


@pytest.mark.parametrize("exact", [False, True], ids=["borrowing", "exact"])
@pytest.mark.parametrize("by", ["text", "stream"])
def test_an_answer_that_a_stop_string_ends_is_accounted_like_any_other(
    engine: RAGCacheEngine, exact: bool, by: str
):
    ask_all(engine)
    prompt, documents = prompt_of((3, 0, 5), "How many houses stand by the Dee?")
    options = SamplingOptions(max_tokens=16, ignore_eos=True)
    for _ in range(2):  # the second one finds all that the first one has left
        whole = engine.generate(prompt, documents, options, exact=exact)
    middle = len(whole.text) // 2
    stop = replace(options, stop=(whole.text[middle : middle + 3],))
    before = engine.stats()
    if by == "text":
        usage = engine.generate(prompt, documents, stop, exact=exact).usage
    else:
        pieces = list(engine.stream(prompt, documents, stop, exact=exact))
        assert pieces[-1].usage is not None
        usage = pieces[-1].usage
    assert usage.output_tokens < whole.usage.output_tokens
    assert usage.has_account
    assert (usage.cached, usage.borrowed) == (whole.usage.cached, whole.usage.borrowed)
    assert usage.reused == whole.usage.reused
    assert usage.why_exact == whole.usage.why_exact
    assert usage.is_exact is exact
    stats = engine.stats()
    assert stats.approximate == before.approximate + (not exact)
    for count in ("device_tokens", "computed_tokens", "borrowed_tokens"):
        told = {
            "device_tokens": usage.cached.device,
            "computed_tokens": usage.computed_tokens,
            "borrowed_tokens": usage.borrowed.total,
        }[count]
        assert getattr(stats.tiers, count) == getattr(before.tiers, count) + told


def test_an_exact_request_says_why_it_borrowed_nothing(engine: RAGCacheEngine):
    usage = ask(engine, (0, 3), "Why?", exact=True).usage
    assert usage.is_exact
    assert usage.borrowed.total == 0
    assert usage.why_exact == "the request asked for an exact answer"
    assert engine.generate("Why?", [], OPTIONS).usage.why_exact is not None


def test_documents_are_borrowed_from_behind_their_neighbours(engine: RAGCacheEngine):
    neighbours = {document.id: TOWNS[place - 1] for place, document in enumerate(TOWNS)}
    corpus = Corpus("towns", lambda documents: [neighbours[one.id] for one in documents])
    alone = ask_all(engine, ratio=0)
    _, documents = prompt_of(*ASKED[0])
    with engine.retrieval("How many?") as retrieval:
        retrieval.look_up_neighbours(TOWNS, corpus)
        retrieval.found(documents)
    behind = ask_all(engine, ratio=0)
    assert tokens_of(behind) != tokens_of(alone), "another context gives other tensors"
    assert tokens_of(ask_all(engine, ratio=0)) == tokens_of(behind)
    assert tokens_of(ask_all(engine, ratio=1)) == tokens_of(ask_all(engine, exact=True))
    engine.forget([document.id for document in TOWNS])
    assert tokens_of(ask_all(engine, ratio=0)) == tokens_of(alone), "neighbours are forgotten too"


def test_a_ratio_outside_0_to_1_is_refused_before_anything_runs(engine: RAGCacheEngine):
    with pytest.raises(InvalidArgument, match="from 0 to 1"):
        ask(engine, (0, 1), "Why?", ratio=1.5)


def test_documents_may_be_prepared_while_nobody_asks(demo_model: str, engine: RAGCacheEngine):
    engine.clear_cache()
    borrowed = ask(engine, (0, 5, 3), "When was the mill by the Frome built?")
    with RAGCacheEngine(settings(demo_model, "later")) as later:
        first = ask(later, (0, 3, 5), "How many houses stand by the Dee?")
        assert first.usage.why_exact == WhyExact.NOT_PREPARED
        deadline = time.monotonic() + 60
        while later.stats().unprepared and time.monotonic() < deadline:
            time.sleep(0.05)
        second = ask(later, (0, 5, 3), "When was the mill by the Frome built?")
        assert later.stats().finished == 2
    assert second.usage.borrowed.device > second.usage.prompt_tokens // 2
    assert second.token_ids == borrowed.token_ids, "it borrows the same tensors"
