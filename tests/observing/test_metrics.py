"""An engine's metrics: Prometheus's own checker accepts them, and they say what stats() says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from ragcache_engine import Document, EngineClosed, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.tiers.metric_names import TIER_METRICS, MetricKind

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it." * 9)


def ask_twice(engine: RAGCacheEngine) -> None:
    for question in ("Why?", "When?"):
        engine.generate(f"{TIDES.text}\n\n{question}", [TIDES])


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_promtool_finds_nothing_to_complain_about(memory_engine: RAGCacheEngine):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    ask_twice(memory_engine)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=memory_engine.metrics(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_metrics_say_what_the_counters_say(engine: RAGCacheEngine):
    ask_twice(engine)
    stats, told = engine.stats(), values(engine.metrics())
    assert told["ragcache_requests_total", (("outcome", "finished"),)] == stats.finished
    assert told["ragcache_running_requests", ()] == 0
    assert told["ragcache_output_tokens_total", ()] == stats.output_tokens
    by_source = {
        source: told["ragcache_prompt_tokens_total", (("source", source),)]
        for source in ("device", "host", "disk", "computed")
    }
    assert by_source["device"] == stats.tiers.device_tokens > 0
    assert by_source["computed"] == stats.tiers.computed_tokens > 0
    assert told["ragcache_time_to_first_token_seconds_count", ()] == stats.finished
    assert told["ragcache_time_to_first_token_seconds_sum", ()] > 0
    held = told["ragcache_held_blocks", (("tier", "device"),)]
    assert 0 < held <= told["ragcache_capacity_blocks", (("tier", "device"),)]
    assert told["ragcache_disk_state", (("state", "none"),)] == 1
    assert told["ragcache_disk_state", (("state", "on"),)] == 0


def test_a_full_device_shows_in_gauges_and_evictions(engine_on: Callable[..., RAGCacheEngine]):
    engine = engine_on(MemoryBackend(device_blocks=40, host_blocks=40, disk_blocks=400))
    for number in range(20):
        engine.generate(f"{number} " * 300)
    told = values(engine.metrics())
    assert told["ragcache_capacity_blocks", (("tier", "device"),)] == 40
    assert 0 < told["ragcache_held_blocks", (("tier", "host"),)] <= 40
    assert told["ragcache_evicted_blocks_total", (("tier", "device"),)] > 0
    assert told["ragcache_host_stored_bytes_total", ()] > 0
    assert told["ragcache_disk_state", (("state", "on"),)] == 1


def test_names_follow_the_conventions():
    for metric in TIER_METRICS:
        assert metric.name.startswith("ragcache_")
        assert ":" not in metric.name
        assert metric.help.endswith(".")
        if metric.kind is MetricKind.COUNTER:
            assert not metric.name.endswith("_total"), "exporters add it"


def test_two_engines_fit_into_one_registry_with_labels_of_their_own(
    engine_on: Callable[..., RAGCacheEngine],
):
    registry = CollectorRegistry()
    for name in ("law", "code"):
        engine = engine_on(MemoryBackend())
        registry.register(engine.collector({"corpus": name}))
        if name == "law":
            ask_twice(engine)
    finished = {
        name: registry.get_sample_value(
            "ragcache_requests_total", {"corpus": name, "outcome": "finished"}
        )
        for name in ("law", "code")
    }
    assert finished == {"law": 2.0, "code": 0.0}


def test_the_buckets_of_a_histogram_add_up(memory_engine: RAGCacheEngine):
    ask_twice(memory_engine)
    told = values(memory_engine.metrics())
    buckets = [
        value
        for (name, _), value in told.items()
        if name == "ragcache_time_to_first_token_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2


def test_a_closed_engine_still_tells_its_last_figures(engine_on: Callable[..., RAGCacheEngine]):
    engine = engine_on(MemoryBackend())
    ask_twice(engine)
    engine.close()
    with pytest.raises(EngineClosed):
        engine.generate("Why?")
    assert 'ragcache_requests_total{outcome="finished"} 2.0' in engine.metrics()
