"""Speculation as a caller sees it: answers are what they would be without it, sooner if it was right."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from waiting import eventually

from ragcache_engine import (
    Answer,
    Document,
    EngineClosed,
    EngineConfig,
    EngineDied,
    GenerationFailed,
    RAGCacheEngine,
    SamplingOptions,
    SpeculationOutcome,
    SpeculationStep,
    Template,
)
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_engine.protocols import BackendRequest, Delta

EngineOn = Callable[..., RAGCacheEngine]

TEMPLATE = Template("Use these passages.\n\n", "\n\n", "\n\nQuestion: {question}\nAnswer:")
DOCUMENTS = [
    Document(
        f"d{n}", f"Passage {n} tells what there is to say about subject {n}." + " So it is." * 20
    )
    for n in range(12)
]
A, B, C, D = DOCUMENTS[:4]
TEN = SamplingOptions(max_tokens=10)
ADOPTED = SpeculationOutcome.ADOPTED


def reply(prompt: str) -> str:
    """Says which documents and which question it read, so that no other prompt has this answer."""
    return " ".join(["It says:", *(w for w in prompt.split() if w.isdigit()), prompt[-30:-9]])


def started(engine: RAGCacheEngine, number: int) -> bool:
    return eventually(lambda: engine.stats().speculation.started >= number)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(reply)


@pytest.fixture
def engine(engine_on: EngineOn, backend: MemoryBackend) -> RAGCacheEngine:
    return engine_on(backend, speculation="on")


@pytest.fixture
def alone(engine_on: EngineOn) -> RAGCacheEngine:
    """An engine that never speculates, to compare with."""
    return engine_on(MemoryBackend(reply), speculation="off")


class Held(MemoryBackend):
    """Stops after a few steps until it is let go on, so that what runs is sure to be found running."""

    def __init__(self, reply: Callable[[str], str] = reply, steps: int = 3) -> None:
        super().__init__(reply, fault=self._hold)
        self._held_steps = steps
        self.goes_on = threading.Event()

    def _hold(self, step: int) -> None:
        if step >= self._held_steps and not self.goes_on.is_set():
            raise Stall


def ask(
    engine: RAGCacheEngine,
    question: str,
    *stages: Sequence[Document],
    options: SamplingOptions = TEN,
    wait: bool = True,
    **told: Any,
) -> Answer:
    """A search with these stages, the last one final, and the prompt made of it."""
    told = {"template": TEMPLATE, "options": options, **told}
    before = engine.stats().speculation.started
    with engine.retrieval(question, **told) as retrieval:
        for number, documents in enumerate(stages[:-1], 1):
            retrieval.provisional(documents)
            assert not wait or started(engine, before + number)
        retrieval.found(stages[-1])
    return engine.generate(TEMPLATE(question, stages[-1]), options=options)


def test_an_answer_begun_on_provisional_documents_is_adopted(
    engine: RAGCacheEngine, alone: RAGCacheEngine
):
    early, late = ask(engine, "Why?", [A, B], [A, B]), ask(alone, "Why?", [A, B], wait=False)
    assert (early.text, early.token_ids) == (late.text, late.token_ids)
    assert early.usage.speculation.outcome is ADOPTED
    assert engine.stats().speculation.adopted == 1
    assert engine.stats().speculation.wasted_prefill_tokens == 0


def test_a_guess_leaves_out_what_its_prompt_leaves_out(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(reply), speculation="on", dedupe=True)
    found = [A, replace(A, id="copy"), B]
    usages = [ask(engine, question, found, found).usage for question in ("Why?", "When?")]
    assert [usage.speculation.outcome for usage in usages] == [ADOPTED] * 2
    assert [usage.repeated_ids for usage in usages] == [("copy",)] * 2


def test_only_what_the_search_may_take_back_is_called_provisional(engine_on: EngineOn):
    class Listening(MemoryBackend):
        def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
            asked.append((request.is_guess, request.is_provisional))
            return super().generate(request)

    asked: list[tuple[bool, bool]] = []
    engine = engine_on(Listening(reply), speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.provisional([A])
        assert started(engine, 1)
        retrieval.found([A, B])
    assert started(engine, 2)
    engine.generate("Something else.", options=TEN)
    assert asked == [(True, True), (True, False), (False, False)]


def test_what_the_search_and_the_pipeline_take_is_hidden(
    engine: RAGCacheEngine, backend: MemoryBackend
):
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.provisional([A, B])
        assert eventually(lambda: backend.prefilled_tokens > 0 and not backend.running)
        answered_s = backend.now()
        backend.advance(5.0)
        retrieval.found([A, B])
    usage = engine.generate(TEMPLATE("Why?", [A, B]), options=TEN).usage
    assert usage.ttft_s == usage.retrieval_s == usage.total_s
    assert backend.now() == answered_s + 5.0  # nothing was left to compute


def test_the_timeline_tells_what_happened_when(engine: RAGCacheEngine):
    report = ask(engine, "Why?", [A], [A, B], [A, B]).usage.speculation
    steps = [event.step for event in report.timeline]
    before_the_prompt = steps[: steps.index(SpeculationStep.PROMPT)]
    assert [step for step in before_the_prompt if step is not SpeculationStep.FIRST_TOKEN] == [
        SpeculationStep.STAGE,
        SpeculationStep.STARTED,
        SpeculationStep.STAGE,
        SpeculationStep.CANCELLED,
        SpeculationStep.STARTED,
        SpeculationStep.STAGE,
    ]
    assert steps.count(SpeculationStep.FIRST_TOKEN) == 1
    assert steps[-1] in (SpeculationStep.ADOPTED, SpeculationStep.FIRST_TOKEN)
    times = [event.at_s for event in report.timeline]
    assert times == sorted(times)
    assert times[0] >= 0


def test_a_search_that_changes_its_mind_at_every_stage_gets_the_right_answer(
    engine: RAGCacheEngine, alone: RAGCacheEngine
):
    stages = [[A], [B], [A, B], [B, A], [A, C], [C, A, B], [A, B, C]]
    answer = ask(engine, "Why?", *stages)
    assert answer.text == ask(alone, "Why?", stages[-1], wait=False).text
    stats = engine.stats().speculation
    assert stats.started - stats.cancelled == (answer.usage.speculation.outcome is ADOPTED)
    assert stats.wasted_prefill_tokens > 0


def test_what_a_wrong_guess_prefilled_stays_cached(engine: RAGCacheEngine, backend: MemoryBackend):
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.provisional([A, B])
        assert eventually(lambda: backend.prefilled_tokens > 0 and not backend.running)
        retrieval.found([A, C])
    usage = engine.generate(TEMPLATE("Why?", [A, C]), options=TEN).usage
    assert usage.cached.device >= len(engine.tokenize(A.text)) - engine.limits.block_tokens


def test_the_second_question_of_a_chain_needs_no_template(
    engine: RAGCacheEngine, alone: RAGCacheEngine
):
    ask(engine, "What is the first question?", [A, B], template=None)
    answer = ask(engine, "And what is the second?", [C, D], [C, D], template=None)
    assert answer.usage.speculation.outcome is ADOPTED
    assert answer.text == ask(alone, "And what is the second?", [C, D], wait=False).text


def test_a_chain_does_not_know_what_another_one_learned(engine: RAGCacheEngine):
    ask(engine, "What is the first question?", [A, B], template=None, chain="one")
    ask(engine, "And the second?", [A, B], [A, B], template=None, chain="other", wait=False)
    assert engine.stats().speculation.started == 0


def test_a_prompt_that_is_not_the_expected_one_is_answered_itself(
    engine: RAGCacheEngine, alone: RAGCacheEngine
):
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.provisional([A, B])
        assert started(engine, 1)
        retrieval.found([A, B])
    prompt = f"{A.text}\n{B.text}\nIn one word: Why?"
    answer = engine.generate(prompt, options=TEN)
    assert answer.text == alone.generate(prompt, options=TEN).text
    assert answer.usage.speculation.outcome is SpeculationOutcome.OTHER_PROMPT


@pytest.mark.parametrize(
    "options",
    [SamplingOptions(max_tokens=3), SamplingOptions(max_tokens=10, temperature=0.5, seed=2)],
    ids=["length", "seed"],
)
def test_other_options_are_other_answers_from_the_same_prefill(
    engine_on: EngineOn, options: SamplingOptions
):
    engine, alone = (engine_on(SpeaksOfItsSeed(), speculation=mode) for mode in ("on", "off"))
    expected = SamplingOptions(max_tokens=10, temperature=0.5, seed=1)
    with engine.retrieval("Why?", template=TEMPLATE, options=expected) as retrieval:
        retrieval.found([A, B])
        assert started(engine, 1)
    answer = engine.generate(TEMPLATE("Why?", [A, B]), options=options)
    assert answer.text == alone.generate(TEMPLATE("Why?", [A, B]), options=options).text
    assert answer.usage.speculation.outcome is SpeculationOutcome.OTHER_OPTIONS
    assert engine.stats().speculation.wasted_prefill_tokens == 0


def test_a_question_with_a_guess_uses_its_documents_once(
    engine: RAGCacheEngine, alone: RAGCacheEngine
):
    uses = []
    for one in (engine, alone):
        for options in (TEN, TEN, SamplingOptions(max_tokens=3)):
            ask(one, "Who?", [A, B], [A, B], options=options, wait=one is engine)
        ask(one, "And now?", [C, D], wait=one is engine)  # it brings the news of the last adoption
        snapshot = one.snapshot()
        assert snapshot is not None
        uses.append({document.documents: document.uses for document in snapshot.documents})
    assert uses[0] == uses[1]
    assert engine.stats().speculation.adopted > 0


class SpeaksOfItsSeed(MemoryBackend):
    """Its answers depend on the options too, as drawn ones do."""

    def _answer(self, request: BackendRequest) -> list[str]:
        return [f"seed {request.options.seed} ", *super()._answer(request)]


def test_the_same_seed_may_be_adopted(engine_on: EngineOn):
    seeded = SamplingOptions(max_tokens=10, temperature=0.5, seed=1)
    answer = ask(engine_on(SpeaksOfItsSeed(), speculation="on"), "Why?", [A], [A], options=seeded)
    assert answer.usage.speculation.outcome is ADOPTED
    assert answer.text.startswith("seed 1 ")


def test_what_was_begun_for_one_tenant_is_not_adopted_by_another(engine: RAGCacheEngine):
    prompt = TEMPLATE("Why?", [A, B])
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN, tenant="ours") as retrieval:
        retrieval.found([A, B])
        assert started(engine, 1)
    theirs = engine.generate(prompt, [A, B], TEN, tenant="theirs")
    assert theirs.usage.speculation.outcome is SpeculationOutcome.NONE
    assert theirs.usage.cached.total == 0
    ours = engine.generate(prompt, options=TEN, tenant="ours")
    assert ours.usage.speculation.outcome is ADOPTED


def test_what_one_tenant_asks_like_is_not_told_to_another(engine: RAGCacheEngine):
    with engine.retrieval("What is it about?", tenant="ours") as retrieval:
        retrieval.found([A, B])
    engine.generate(TEMPLATE("What is it about?", [A, B]), options=TEN, tenant="ours")
    for tenant, begins in (("theirs", 0), (None, 0), ("ours", 1)):
        with engine.retrieval("And what is this about?", tenant=tenant) as retrieval:
            retrieval.found([C, D])
            assert not begins or started(engine, begins)
        engine.generate("Something else.")
        assert engine.stats().speculation.started == begins


@pytest.mark.parametrize(("named", "adopted"), [(None, 1), ([A, B], 1), ([A], 0)])
def test_where_documents_are_borrowed_it_matters_what_is_a_document(
    engine_on: EngineOn, named: list[Document] | None, adopted: int
):
    backend = MemoryBackend(reply, recompute_ratio=0.1)
    engine = engine_on(
        backend, speculation="on", reuse="anywhere", recompute_ratio=0.1, donors="alone"
    )
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.found([A, B])
    assert started(engine, 1)
    usage = engine.generate(TEMPLATE("Why?", [A, B]), named, TEN).usage
    assert engine.stats().speculation.adopted == adopted
    assert usage.is_exact == (named == [A])


def test_a_forgotten_document_is_not_kept_by_what_nobody_asked_for(engine_on: EngineOn):
    backend = Held()
    engine = engine_on(backend, speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.found([A, B])
    assert eventually(lambda: backend.cached_blocks > 0)
    engine.forget(["d0"])
    assert (backend.running, backend.aborted) == (0, 1)
    assert engine.stats().speculation.expired == 1


def test_where_only_the_part_up_to_the_documents_is_known_it_is_prefilled(engine: RAGCacheEngine):
    history = ""
    for question in ("What is the first?", "And the second one?", "And what is the third?"):
        before = engine.stats().speculation.started
        with engine.retrieval(question) as retrieval:
            retrieval.found(DOCUMENTS[len(history) % 7 :][:3])
            expects = history.count("\n") > 1
            assert not expects or started(engine, before + 1)
        passages = "\n".join(document.text for document in retrieval.documents)
        prompt = f"Texts:\n{passages}\nSo far: {history}\nNow: {question}"
        usage = engine.generate(prompt, options=TEN).usage
        history += f"{question} Because!\n"
    assert usage.speculation.outcome is SpeculationOutcome.PREFILLED
    assert usage.cached.device > 0
    assert engine.stats().speculation.prefilled == 1


def test_work_nobody_comes_for_expires(engine: RAGCacheEngine, backend: MemoryBackend):
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.found([A, B])
    assert started(engine, 1)
    backend.advance(11.0)
    engine.generate("Something else.")
    stats = engine.stats().speculation
    assert (stats.expired, stats.adopted) == (1, 0)
    assert stats.wasted_prefill_tokens == len(engine.tokenize(TEMPLATE("Why?", [A, B])))
    late = engine.generate(TEMPLATE("Why?", [A, B]), options=TEN)
    assert late.usage.speculation.outcome is SpeculationOutcome.EXPIRED
    assert late.usage.cached.device > 0


def test_work_nobody_comes_for_is_bounded(engine: RAGCacheEngine):
    for number in range(20):
        with engine.retrieval(f"Why {number}?", template=TEMPLATE, options=TEN) as retrieval:
            retrieval.found([A, B])
    assert started(engine, 8)
    engine.generate("Something else.")
    assert engine.stats().speculation.started == 8


def test_work_nobody_comes_for_does_not_keep_the_cache_from_being_cleared(
    engine_on: EngineOn,
):
    backend = Held()
    engine = engine_on(backend, speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
        retrieval.found([A, B])
    assert eventually(lambda: backend.cached_blocks > 0)
    engine.clear_cache()
    backend.goes_on.set()
    assert engine.generate(TEMPLATE("Why?", [A, B]), options=TEN).usage.cached.total == 0


def test_a_search_that_fails_takes_its_work_with_it(
    engine_on: EngineOn,
):
    backend = Held()
    engine = engine_on(backend, speculation="on")
    with pytest.raises(OSError), engine.retrieval("Why?", template=TEMPLATE) as retrieval:  # noqa: PT011, PT012
        retrieval.provisional([A])
        assert eventually(lambda: backend.running == 1)
        raise OSError("the index is gone")
    assert eventually(lambda: backend.running == 0)
    assert backend.aborted == 1


def test_closing_the_engine_ends_what_it_began(engine_on: EngineOn):
    backend = Held()
    engine = engine_on(backend, speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
        retrieval.provisional([A])
        assert eventually(lambda: backend.running == 1)
        engine.close()
        retrieval.provisional([B])
        retrieval.found([A])
    assert backend.running == 0
    with pytest.raises(EngineClosed):
        engine.generate("Why?")


@pytest.mark.slow
def test_an_engine_dropped_with_work_nobody_came_for_closes():
    engine = RAGCacheEngine(EngineConfig(model="any", backend="memory", speculation="on"))
    with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
        retrieval.found([A])
    gone = weakref.ref(engine)
    del engine, retrieval
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("leave", ["before the first piece", "after it"])
def test_leaving_a_stream_that_adopted_work_ends_that_work(engine_on: EngineOn, leave: str):
    backend = Held()
    engine = engine_on(backend, speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.found([A])
        assert started(engine, 1)
    with engine.stream(TEMPLATE("Why?", [A]), options=TEN) as stream:
        assert eventually(lambda: engine.stats().speculation.adopted == 1)
        if leave == "after it":
            assert next(stream).text
    assert eventually(lambda: backend.running == 0)
    assert eventually(lambda: engine.stats().cancelled == 1)


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize(
    "error", [GenerationFailed("broken"), EngineDied("gone")], ids=["broken step", "death"]
)
def test_a_failure_at_any_step_is_not_noticed(
    engine_on: EngineOn, alone: RAGCacheEngine, step: int, error: Exception
):
    """Before, while and after the answer is adopted."""

    def fault(at: int) -> None:
        if at == step:
            raise error

    engine = engine_on(MemoryBackend(reply, fault=fault), speculation="on")
    answer = ask(engine, "Why?", [A], [A, B], wait=False)
    assert answer.text == ask(alone, "Why?", [A, B], wait=False).text
    assert ask(engine, "Who?", [C, D]).text == ask(alone, "Who?", [C, D], wait=False).text


def test_work_that_dies_after_it_was_adopted_is_resumed(engine_on: EngineOn, alone: RAGCacheEngine):
    backend = DiesOnce()
    engine = engine_on(backend, speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
        retrieval.found([A, B])
        assert started(engine, 1)
    with engine.stream(TEMPLATE("Why?", [A, B]), options=TEN) as stream:
        assert eventually(lambda: engine.stats().speculation.adopted == 1)
        backend.goes_on.set()
        answer = stream.answer()
    assert answer.text == alone.generate(TEMPLATE("Why?", [A, B]), options=TEN).text
    assert engine.stats().retried == 1


class DiesOnce(Held):
    dead = False

    def _hold(self, step: int) -> None:
        super()._hold(step)
        if step >= self._held_steps and not self.dead:
            self.dead = True
            raise EngineDied("gone")


def test_what_is_no_list_of_documents_never_reaches_the_search_as_an_error(engine: RAGCacheEngine):
    with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
        retrieval.provisional(None)  # type: ignore[arg-type]
        retrieval.provisional(["no document"])  # type: ignore[list-item]
        retrieval.found([A])
    assert engine.generate(TEMPLATE("Why?", [A])).usage.document_ids == ("d0",)


def test_a_template_that_raises_never_reaches_the_search_as_an_error(engine: RAGCacheEngine):
    def broken(question: str, documents: Sequence[Document]) -> str:
        raise KeyError("history")

    answer = ask(engine, "Why?", [A], [A], template=broken, wait=False)
    assert answer.usage.speculation.outcome is SpeculationOutcome.NONE


def test_two_identical_questions_at_once_each_get_their_answer(
    engine: RAGCacheEngine, alone: RAGCacheEngine
):
    retrievals = []
    for _ in range(2):
        with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
            retrieval.found([A, B])
            retrievals.append(retrieval)
    assert started(engine, 2)
    prompt = TEMPLATE("Why?", [A, B])
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda p: engine.generate(p, options=TEN), [prompt] * 3))
    assert {answer.text for answer in answers} == {alone.generate(prompt, options=TEN).text}
    outcomes = [answer.usage.speculation.outcome for answer in answers]
    assert outcomes.count(ADOPTED) == engine.stats().speculation.adopted == 2


def searches(number: int) -> list[tuple[str, list[list[Document]]]]:
    """Questions with stages; a few change their mind, some are asked by several at once."""
    chosen = random.Random(7)
    return [
        (
            f"What is there to say about {n % (number * 3 // 4)}?",
            [chosen.sample(DOCUMENTS, 3) for _ in range(chosen.randrange(3))]
            + [DOCUMENTS[n % 9 :][:3]] * chosen.randrange(1, 4),
        )
        for n in range(number)
    ]


@pytest.mark.slow
def test_32_threads_get_the_answers_they_would_get_alone(
    engine: RAGCacheEngine, alone: RAGCacheEngine
):
    asked = searches(96)

    def answer(one: tuple[str, list[list[Document]]]) -> str:
        return ask(engine, one[0], *one[1], wait=False, chain="threads", template=None).text

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(answer, asked))
    prompts = [TEMPLATE(question, stages[-1]) for question, stages in asked]
    assert answers == [alone.generate(prompt, options=TEN).text for prompt in prompts]
    assert eventually(lambda: engine.stats().running == 0)


@pytest.mark.slow
def test_200_tasks_get_the_answers_they_would_get_alone(
    engine: RAGCacheEngine, backend: MemoryBackend, alone: RAGCacheEngine
):
    asked = searches(200)

    async def answer(question: str, stages: list[list[Document]]) -> str:
        with engine.retrieval(question, template=TEMPLATE, options=TEN) as retrieval:
            for documents in stages[:-1]:
                retrieval.provisional(documents)
                await asyncio.sleep(0.002)
            retrieval.found(stages[-1])
        await asyncio.sleep(0.002)
        return (await engine.agenerate(TEMPLATE(question, stages[-1]), options=TEN)).text

    async def together() -> list[str]:
        return await asyncio.gather(*(answer(*one) for one in asked))

    answers = asyncio.run(together())
    prompts = [TEMPLATE(question, stages[-1]) for question, stages in asked]
    assert answers == [alone.generate(prompt, options=TEN).text for prompt in prompts]
    stats = engine.stats().speculation
    assert stats.adopted > 0
    assert stats.started == stats.adopted + stats.cancelled + stats.failed + stats.expired
    assert backend.running == 0


def test_off_means_off(alone: RAGCacheEngine):
    answer = ask(alone, "Why?", [A], [A], wait=False)
    assert answer.usage.speculation.timeline == ()
    assert alone.stats().speculation.started == 0


@pytest.mark.parametrize(("search_s", "goes_on"), [(0.5, True), (0.0, False)])
def test_left_alone_it_goes_on_where_searches_take_their_time(
    engine_on: EngineOn, search_s: float, goes_on: bool
):
    backend = MemoryBackend(reply, prefill_s=lambda cached, computed: 1e-9, decode_s=0.0)
    engine = engine_on(backend)
    for number in range(12):
        before = engine.stats().speculation.started
        with engine.retrieval(f"Why {number}?", template=TEMPLATE, options=TEN) as retrieval:
            retrieval.provisional([A, B])
            if goes_on:
                assert started(engine, before + 1)
            backend.advance(search_s)
            retrieval.found([A, B])
        engine.generate(TEMPLATE(f"Why {number}?", [A, B]), options=TEN)
    assert (engine.stats().speculation.started == 12) == goes_on
    assert goes_on or engine.stats().speculation.started <= 1


def test_left_alone_it_waits_for_the_end_of_short_searches(engine_on: EngineOn):
    """A wrong guess would run a step of half a second, to begin two milliseconds sooner."""
    backend = MemoryBackend(reply, prefill_s=lambda cached, computed: 0.5, decode_s=0.0)
    engine = engine_on(backend)
    outcomes = []
    for number in range(6):
        question = f"Why {number}?"
        with engine.retrieval(question, template=TEMPLATE, options=TEN) as retrieval:
            retrieval.provisional([C, D])
            if number:
                time.sleep(0.1)  # a guess would have begun by now
            else:
                assert started(engine, 1)  # nothing is known yet
            backend.advance(0.002)
            retrieval.found([A, B])
        assert started(engine, number + 2)
        backend.advance(0.05)  # what the chain takes for its prompt
        usage = engine.generate(TEMPLATE(question, [A, B]), options=TEN).usage
        outcomes.append(usage.speculation.outcome)
    assert outcomes == [ADOPTED] * 6
    assert engine.stats().speculation.started == 7  # one for each question, and a wrong one


def test_left_alone_it_prefills_what_is_added_document_by_document(engine_on: EngineOn):
    """As a crawler's pages: each question has others, and nothing that was prefilled is in vain."""
    backend = MemoryBackend(reply)
    engine = engine_on(backend)
    usage = None
    for number in range(6):
        question, pages = f"Why {number}?", [DOCUMENTS[(number + at) % 12] for at in range(4)]
        pages = [Document(f"{number}/{one.id}", f"{number}: {one.text}") for one in pages]
        with engine.retrieval(question, template=TEMPLATE, options=TEN) as retrieval:
            for count in range(1, 5):
                before = engine.stats().speculation.started
                retrieval.provisional(pages[:count])
                assert started(engine, before + 1)
                backend.advance(1.0)
            retrieval.found(pages)
        usage = engine.generate(TEMPLATE(question, pages), options=TEN).usage
        assert usage.speculation.outcome is ADOPTED
    assert engine.stats().speculation.wasted_prefill_tokens == 0


def test_under_load_it_begins_nothing(engine_on: EngineOn):
    backend = Held(steps=0)
    engine = engine_on(backend)
    with engine.stream("Someone else's prompt. " * 150) as stream:
        assert eventually(lambda: engine.stats().running == 1)
        with engine.retrieval("Why?", template=TEMPLATE, options=TEN) as retrieval:
            retrieval.provisional([A, B])
            retrieval.found([A, B])
        backend.goes_on.set()
        stream.answer()
    assert engine.stats().speculation.started == 0
