"""What a backend does while it has no request, and while another way to its model has one."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from ragcache_engine import MemoryBackend, SamplingOptions
from ragcache_engine.anywhere.idle_backend import IdleBackend, with_idle_work
from ragcache_engine.observing.metrics import SampleCollector, sample_idle_work
from ragcache_engine.prompt import Span, token_segments
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.tiers.borrowing.plan import WhyExact

TEXTS = {name: f"What is known about {name}. " * 20 for name in ("tides", "salt")}


def around(inner: Backend) -> IdleBackend:
    return with_idle_work(inner, prepares_later=True, recheck_share=0.5, least=None)


def asked(backend: Backend) -> BackendRequest:
    text, spans = "You know the sea. ", []
    for name, own in TEXTS.items():
        spans.append(Span(len(text), len(text) + len(own), name))
        text += own
    tokens = backend.tokenize(text + "Why?")
    segments = token_segments(tokens, spans)
    return BackendRequest("first", tokens, segments, SamplingOptions(max_tokens=1))


async def answer(idle: IdleBackend) -> WhyExact | str | None:
    [*_, last] = [delta async for delta in idle.backend.generate(asked(idle.backend))]
    return last.why_exact


def unprepared(idle: IdleBackend) -> int:
    return idle.stats().unprepared


async def test_it_prepares_around_a_backend_that_runs_already():
    inner = MemoryBackend(recompute_ratio=0.1, donors_later=True)
    idle = around(inner)
    await inner.start()
    idle.open()
    assert await answer(idle) == WhyExact.NOT_PREPARED
    while unprepared(idle):
        await asyncio.sleep(0.01)
    assert idle.stats().prepared == 1
    await idle.backend.close()


async def test_a_server_shows_what_was_done_in_idle_time_among_its_metrics():
    idle = around(MemoryBackend(recompute_ratio=0.1, donors_later=True))
    registry = CollectorRegistry()
    registry.register(SampleCollector(lambda: sample_idle_work(idle.stats())))

    def told(name: str) -> float | None:
        return registry.get_sample_value(f"ragcache_{name}")

    assert told("recheck_likeness_ratio") is None
    await idle.backend.start()
    with idle.occupied():
        await answer(idle)
        assert (told("unprepared_prompts"), told("prepared_prompts_total")) == (1, 0)
    while told("unprepared_prompts"):
        await asyncio.sleep(0.01)
    assert told("prepared_prompts_total") == 1
    assert idle.drift
    idle.drift.note(0.25)
    assert told("rechecked_answers_total") == 1
    assert told("recheck_likeness_ratio") == 0.25
    assert told("borrowing_switched_off") == 0
    await idle.backend.close()


async def test_nothing_is_done_while_a_request_reaches_the_model_another_way():
    idle = around(MemoryBackend(recompute_ratio=0.1, donors_later=True))
    await idle.backend.start()
    with idle.occupied():
        await answer(idle)
        await asyncio.sleep(0.5)
        assert unprepared(idle) == 1
    while unprepared(idle):
        await asyncio.sleep(0.01)
    await idle.backend.close()
