"""The virtual clock: times add up, the same play gives the same digits, and losses are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ragcache_engine.backends.vllm.installed import installed_vllm
from ragcache_engine.knowledge import CostProfile

if installed_vllm() is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from comparing.systems import FULL, LRU, OFF
from virtual.engine import Asked, Served
from virtual.figures import find_losses, jain_index, slo_throughput, summarize
from virtual.machines import (
    Machine,
    MeasuredSteps,
    PublishedSteps,
    bench_machine,
    simulated_machines,
)
from virtual.measured import fit_run
from virtual.systems import SYSTEMS, open_system

PROFILE = replace(
    CostProfile.default(),
    seconds=tuple(
        tuple(1e-3 * new for new in (0, *(64 << s for s in range(12)))) for _ in range(2)
    ),
)
"""One millisecond a token, whatever is cached."""


def machine(**changes: Any) -> Machine:
    small = {"device_tokens": 64 * 32, "host_tokens": 256 * 32, "disk_tokens": 512 * 32}
    return replace(bench_machine(PROFILE, outside_s=0.0), **{**small, **changes})


def requests(count: int, *, every_s: float = 0.0) -> list[Asked]:
    """Make requests for four documents in turn, one document each, with a question of its own."""
    made = []
    for number in range(count):
        document = [100 * (number % 4) + at % 97 for at in range(320)]
        question = [7_000 + number, *range(20)]
        segments = [(len(document), f"d{number % 4}")]
        made.append(Asked(document + question, segments, 3, at_s=number * every_s))
    return made


def play(system: Any, model: str, asked: list[Asked], **changes: Any) -> list[Served]:
    with open_system(system, machine(**changes), model) as engine:
        return engine.play(asked)


def test_a_step_of_several_requests_takes_as_long_as_all_their_tokens():
    steps = MeasuredSteps(PROFILE, outside_s=0.0)
    assert steps.step_s([(0, 100)]) == pytest.approx(0.1)
    assert steps.step_s([(0, 60), (500, 40)]) == pytest.approx(0.1)
    assert steps.step_s([]) == 0.0


def test_a_roofline_step_takes_the_longer_of_arithmetic_and_memory():
    steps = PublishedSteps(1e9, 1, 1, 1, flops=1e12, bytes_per_s=1e9, fixed_s=0.5)
    reading_weights_s = 2e9 / 1e9
    assert steps.step_s([(0, 1)]) == pytest.approx(0.5 + reading_weights_s)
    assert steps.step_s([(0, 8000)]) == pytest.approx(0.5 + 2e9 * 8000 / 1e12, rel=1e-3)


def test_a_larger_model_on_more_gpus_has_longer_steps_and_room_for_its_weights():
    seven, seventy = simulated_machines()
    assert 0 < seven.steps.step_s([(0, 4096)]) < seventy.steps.step_s([(0, 4096)])
    assert seven.device_tokens * seven.token_bytes + 2 * 7.25e9 < 80e9
    assert "simulated" in seven.name
    assert "simulated" in seventy.name


def test_the_fit_finds_the_times_that_answers_were_made_with():
    answers = [
        {
            "speculation": "none",
            "cached": [cached, 0, 0],
            "prompt": cached + new,
            "ttft_s": 0.05 + 1e-3 * new + 1e-6 * new * (cached + new / 2),
            "total_s": 0.05 + 1e-3 * new + 1e-6 * new * (cached + new / 2) + 0.12,
            "output": 4,
        }
        for cached in (0, 320)
        for new in (10, 100, 400)
    ]
    slower = [{**answer, "ttft_s": 9.0, "total_s": 9.9} for answer in answers]
    fit = fit_run(
        [
            {"system": "on", "load": "1 at a time", "answers": answers},
            {"system": "anywhere-0", "load": "1 at a time", "answers": slower},
            {"system": "on", "load": "at 2 of capacity", "answers": slower},
        ]
    )
    assert (fit.fixed_s, fit.token_s, fit.pair_s) == pytest.approx((0.05, 1e-3, 1e-6))
    assert fit.outside_s == pytest.approx(0.05 + 1e-3 - 0.04)
    assert fit.profile("here").prefill_s(320, 128) == pytest.approx(0.05 + 0.128 + 1e-6 * 128 * 384)


def test_jains_index_is_1_where_all_wait_alike():
    assert jain_index([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain_index([3.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_throughput_lies_where_nine_tenths_are_within_the_slo_and_losses_are_named():
    quick = [Served(float(at), 10, 1.0, 2.0, 5) for at in range(10)]
    half = [replace(one, ttft_s=9.0) if at % 2 else one for at, one in enumerate(quick)]
    figures = [summarize(1.0, quick, 2.0), summarize(3.0, half, 2.0)]
    rate, is_least = slo_throughput(figures)
    assert rate == pytest.approx(1 + 2 * 0.1 / 0.5)
    assert not is_least
    (loss,) = find_losses(figures[1:], {"lru": figures[:1]}, ["ttft_p99"])
    assert (loss.baseline, loss.measure) == ("lru", "ttft_p99")
    assert loss.times > 5
    assert not find_losses(figures[:1], {"lru": figures[:1]}, ["ttft_p99"])


@pytest.mark.vllm
def test_a_request_alone_waits_for_its_own_tokens_only(demo_model: str):
    (served,) = play(OFF, demo_model, requests(1), outside_s=0.25)
    assert served.ttft_s == pytest.approx(0.25 + 0.341)
    assert served.total_s == pytest.approx(0.25 + 0.343)


@pytest.mark.vllm
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda one: one.key)
@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_every_system_plays_the_same_digits_again(system: Any, steps_ahead: int, demo_model: str):
    changes = {"steps_ahead": steps_ahead, "copies_in_step": steps_ahead == 1}
    asked = requests(24, every_s=0.2)
    first, second = (play(system, demo_model, asked, **changes) for _ in range(2))
    assert first == second
    assert all(0 < one.ttft_s <= one.total_s for one in first)


@pytest.mark.vllm
@pytest.mark.parametrize("system", [LRU, FULL], ids=lambda one: one.key)
def test_what_a_slow_copy_takes_is_waited_for(system: Any, demo_model: str):
    asked = requests(24, every_s=5.0)  # one at a time; the device holds two of the four documents
    changes = {"device_tokens": 32 * 32, "copies_in_step": False}
    fast = play(system, demo_model, asked, host_bytes_per_s=1e12, **changes)
    slow = play(system, demo_model, asked, host_bytes_per_s=1e8, **changes)
    assert sum(one.ttft_s for one in fast) < sum(one.ttft_s for one in slow)
    assert any(one.cached_tokens for one in fast)


@pytest.mark.vllm
@pytest.mark.timeout(60)  # time once stood still, and the copy never ended
@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_copy_that_outlives_the_last_request_ends(steps_ahead: int, demo_model: str):
    changes = {"steps_ahead": steps_ahead, "copies_in_step": False, "host_bytes_per_s": 1e6}
    (served,) = play(FULL, demo_model, requests(1), **changes)
    assert served.total_s > 0
