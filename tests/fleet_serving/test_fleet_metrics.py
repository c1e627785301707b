"""Replicas' metrics on one page: nothing is lost, and a sum over the replicas is the fleet's."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from ragcache_engine import Document, RAGCacheEngine
from ragcache_engine.dashboard.server_observer import read_samples
from ragcache_engine.fleet_serving.fleet_metrics import join_metrics
from ragcache_engine.tiers.counters import DiskState

TIDES = Document("tides", "The moon pulls the oceans and the tides follow it " * 9)
STATE = """# HELP ragcache_disk_state s
# TYPE ragcache_disk_state gauge
ragcache_disk_state{{state="{}"}} 1
"""


def samples_of(page: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_sample_keeps_its_value_and_gets_its_replica(memory_engine: RAGCacheEngine):
    memory_engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES])
    page = memory_engine.metrics()
    joined = samples_of(join_metrics({"a": page, 'b"\\': page}).decode())
    expected = {
        name: [({**labels, "replica": r}, value) for r in ("a", 'b"\\') for labels, value in each]
        for name, each in samples_of(page).items()
    }
    assert joined == expected
    assert any(name.endswith("_bucket") for name in joined)


def test_a_family_is_described_once():
    page = (
        "# HELP vllm:waiting_total All.\n# TYPE vllm:waiting_total counter\nvllm:waiting_total 2\n"
    )
    text = join_metrics({"a": page, "b": page}).decode()
    assert text.splitlines() == [
        "# HELP vllm:waiting_total All.",
        "# TYPE vllm:waiting_total counter",
        'vllm:waiting_total{replica="a"} 2.0',
        'vllm:waiting_total{replica="b"} 2.0',
    ]


def test_who_looks_at_a_fleet_sees_the_sum_of_its_replicas(memory_engine: RAGCacheEngine):
    memory_engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES])
    page = memory_engine.metrics()
    one = read_samples(samples_of(page))
    both = read_samples(samples_of(join_metrics({"a": page, "b": page}).decode()))
    assert both.finished == 2
    assert both.counters.computed_tokens == 2 * one.counters.computed_tokens > 0
    assert both.counters.held["device"] == 2 * one.counters.held["device"] > 0


def test_of_several_disks_the_worst_state_is_told():
    pages = {state: STATE.format(state) for state in ("on", "stalled")}
    seen = read_samples(samples_of(join_metrics(pages).decode()))
    assert seen.counters.disk is DiskState.STALLED
