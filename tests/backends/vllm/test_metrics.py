"""What the tiers' counters become in vLLM's exporter: once a request, and only what has changed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)

from ragcache_engine.backends.vllm.tiers.metrics import CounterReporter, build_definitions
from ragcache_engine.tiers.counters import Counters, DiskState
from ragcache_engine.tiers.metric_names import (
    PLAIN_COUNTS,
    SCHEDULING,
    SERIES,
    sample_counters,
)

pytestmark = pytest.mark.vllm


class Told(OffloadingConnectorStats):
    """Remembers what was reported, by metric and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.counters: dict[tuple[str, tuple[str, ...]], float] = {}
        self.gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self.observed: list[str] = []

    def increase_counter(self, name: str, value: Any, labels: Any = ()) -> None:
        super().increase_counter(name, value, labels)
        self.counters[name, labels] = value

    def set_gauge(self, name: str, value: Any, labels: Any = ()) -> None:
        super().set_gauge(name, value, labels)
        self.gauges[name, labels] = value

    def observe_histogram(self, name: str, value: Any, labels: Any = ()) -> None:
        super().observe_histogram(name, value, labels)
        self.observed.append(name)


@pytest.fixture(autouse=True)
def remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "ragcache_engine.backends.vllm.tiers.metrics.OffloadingConnectorStats"
    monkeypatch.setattr(module, Told)


def report(reporter: CounterReporter, counters: Counters) -> Told:
    told = reporter.report(counters)
    assert isinstance(told, Told)
    return told


def test_the_first_request_names_every_metric():
    told = report(CounterReporter(), Counters(ended=1, device_tokens=32))
    named = {*told.counters, *told.gauges}
    assert named == {(metric.name, labels) for metric, labels in SERIES}
    assert told.counters["ragcache_prompt_tokens", ("device",)] == 32
    assert told.counters["ragcache_prompt_tokens", ("disk",)] == 0
    assert {name for name, _ in named} | {SCHEDULING.name} == build_definitions().keys()


def test_later_ones_report_by_how_much_counters_grew_and_gauges_that_changed():
    reporter, counters = CounterReporter(), Counters(ended=1, device_tokens=32)
    counters.held["host"] = 5
    report(reporter, counters)
    counters.ended, counters.device_tokens = 2, 80
    counters.held["host"], counters.evicted["disk"] = 4, 1
    counters.disk = DiskState.READ_ONLY
    counters.add_scheduling(1e-4)
    told = report(reporter, counters)
    assert told.counters == {
        ("ragcache_prompt_tokens", ("device",)): 48,
        ("ragcache_evicted_blocks", ("disk",)): 1,
    }
    assert told.gauges == {
        ("ragcache_held_blocks", ("host",)): 4,
        ("ragcache_disk_state", ("none",)): 0.0,
        ("ragcache_disk_state", (DiskState.READ_ONLY.value,)): 1.0,
    }
    assert told.observed == [SCHEDULING.name]


def test_nothing_is_reported_while_no_request_has_ended():
    reporter, counters = CounterReporter(), Counters(ended=1)
    report(reporter, counters)
    counters.device_tokens = 9
    assert reporter.report(counters) is None


def test_every_sample_is_the_counter_that_it_names():
    counters = Counters()
    for number, field in enumerate(PLAIN_COUNTS, 1):
        setattr(counters, field, number)
    for number, tier in enumerate(counters.evicted, 100):
        counters.evicted[tier] = number
    told = {(one.metric.name, one.labels): one.value for one in sample_counters(counters)}
    plain = [told[metric.name, ()] for metric in PLAIN_COUNTS.values()]
    assert plain == list(range(1, len(PLAIN_COUNTS) + 1))
    evicted = {tier: told["ragcache_evicted_blocks", (tier,)] for tier in counters.evicted}
    assert evicted == counters.evicted
