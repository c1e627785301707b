"""The alert rules and the board that ship: Prometheus and Grafana know what they say, and they watch real
metrics.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, start_http_server

from ragcache_engine import Document, RAGCacheEngine
from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.observing.metrics import sample_figures
from ragcache_engine.tiers.metric_names import SCHEDULING, MetricKind

DEFAULTS = {"$__rate_interval": "10s", "$__range": "1m", "$job": ".*", "$instance": ".*"}
"""What Grafana fills in for its variables; a short interval, as the test scrapes often."""


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed; Debian's package prometheus has it")
    return path


def run_promtool(*arguments: str, folder: Path) -> None:
    done = subprocess.run(
        [tool("promtool"), *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def queries(shipped: Path) -> dict[str, str]:
    """Every query of the board by the title of its panel, with Grafana's variables filled in."""
    board = json.loads((shipped / "ragcache-grafana.json").read_text())
    found = {}
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in DEFAULTS.items():
                expression = expression.replace(name, value)
            assert "$" not in expression
            found[f"{panel['title']} {target['refId']}"] = expression
    return found


def lost_fields(written: Any, known: Any, place: str = "") -> list[str]:
    """Where `known` lacks a value of `written`, or has another; what it has besides does not count."""
    if isinstance(written, dict) and isinstance(known, dict):
        return [
            lost
            for name, value in written.items()
            for lost in lost_fields(value, known.get(name), f"{place}/{name}")
        ]
    if isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        return [
            lost
            for at, (each, other) in enumerate(zip(written, known, strict=True))
            for lost in lost_fields(each, other, f"{place}/{at}")
        ]
    return [] if written == known else [place]


def as_grafana_reads(board: dict[str, Any]) -> dict[str, Any]:
    """Read a board into the classes of Grafana's SDK and write it again: unknown fields are lost."""
    plugins.register_default_plugins()  # the options of panels, and Prometheus' queries
    written: dict[str, Any] = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    return written


def test_grafana_knows_every_field_of_the_board(shipped: Path):
    board = json.loads((shipped / "ragcache-grafana.json").read_text())
    assert not lost_fields(board, as_grafana_reads(board))


@pytest.mark.parametrize(
    ("field", "misspelt"),
    [("gridPos", "gridPosition"), ("legend", "legends"), ("expr", "expression")],
)
def test_a_misspelt_field_of_the_board_would_be_noticed(shipped: Path, field: str, misspelt: str):
    text = (shipped / "ragcache-grafana.json").read_text()
    wrong = json.loads(text.replace(f'"{field}"', f'"{misspelt}"'))
    assert any(place.endswith(misspelt) for place in lost_fields(wrong, as_grafana_reads(wrong)))


def rule_expressions(shipped: Path) -> dict[str, str]:
    groups = yaml.safe_load((shipped / "ragcache-rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule.get("record") or rule["alert"]: rule["expr"] for rule in rules}


def test_every_query_of_board_and_rules_is_promql(shipped: Path):
    found = queries(shipped) | rule_expressions(shipped)
    for title, expression in found.items():
        try:
            promql_parser.parse(expression)
        except ValueError as error:
            pytest.fail(f"{title}: {error}")
    assert {"Exact hit ratio A", "RAGCacheHitRatioFell"} <= found.keys()


def test_prometheus_accepts_the_rules(shipped: Path):
    run_promtool("check", "rules", "ragcache-rules.yml", folder=shipped)


SCENARIO = """
rule_files: [ragcache-rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      # Half an hour without a hit, after a day of three hits in four.
      - series: 'ragcache_prompt_tokens_total{instance="a", source="device"}'
        values: '0+3000x1440 4320000+0x120'
      - series: 'ragcache_prompt_tokens_total{instance="a", source="computed"}'
        values: '0+1000x1440 1441000+4000x120'
      - series: 'ragcache_disk_damaged_blocks_total{instance="a"}'
        values: '0x1500 1x60'
      - series: 'ragcache_disk_state{instance="a", state="read only"}'
        values: '0x1500 1x60'
      - series: 'ragcache_disk_state{instance="a", state="on"}'
        values: '1x1500 0x60'
      - series: 'ragcache_scheduling_seconds_count{instance="a"}'
        values: '0+10x1530 0+10x29'
      # An embedded engine counts its restarts; a server's counters begin again, as those of "a" do.
      - series: 'ragcache_restarts_total{instance="b"}'
        values: '0x1530 1x29'
      - series: 'ragcache_borrowing_switched_off{instance="b"}'
        values: '0x1530 1x29'
      - series: 'ragcache_borrowing_switched_off{instance="a"}'
        values: '0x1560'
      - series: 'ragcache_requests_total{instance="a", outcome="finished"}'
        values: '0+90x1560'
      - series: 'ragcache_requests_total{instance="a", outcome="failed"}'
        values: '0x1500 0+10x60'
    alert_rule_test:
CASES
"""


ALERTS = (
    "HitRatioFell",
    "DiskDamaged",
    "DiskUnused",
    "Restarted",
    "BorrowingSwitchedOff",
    "RequestsFail",
)


def scenario(at: str, firing: dict[str, tuple[str, ...]]) -> str:
    """A test for promtool: at this time exactly these alerts fire. firing: the labels by alert."""
    cases = []
    for name in ALERTS:
        expected = ", ".join(f"{{exp_labels: {labels}}}" for labels in firing.get(name, ()))
        cases.append(
            f"      - {{eval_time: {at}, alertname: RAGCache{name}, exp_alerts: [{expected}]}}"
        )
    return SCENARIO.replace("CASES", "\n".join(cases))


WARNING = "{instance: a, severity: warning}"
WARNING_OF_B = "{instance: b, severity: warning}"


@pytest.mark.parametrize(
    ("at", "firing"),
    [
        ("20h", {}),
        ("25h", {"HitRatioFell": (WARNING,)}),
        (
            "25h40m",
            {
                "HitRatioFell": (WARNING,),
                "DiskDamaged": (WARNING,),
                "DiskUnused": ("{instance: a, severity: warning, state: read only}",),
                "Restarted": (WARNING, WARNING_OF_B),
                "BorrowingSwitchedOff": (WARNING_OF_B,),
                "RequestsFail": ("{instance: a, severity: critical}",),
            },
        ),
    ],
)
def test_each_alert_fires_when_it_should_and_only_then(
    shipped: Path, tmp_path: Path, at: str, firing: dict[str, tuple[str, ...]]
):
    text = scenario(at, firing)
    # promtool compares annotations too; what they say is for readers.
    rules = re.sub(
        r"\n +annotations:(\n {10,}.*)+", "", (shipped / "ragcache-rules.yml").read_text()
    )
    assert "summary" not in rules
    (tmp_path / "ragcache-rules.yml").write_text(rules)
    (tmp_path / "scenario.yml").write_text(text)
    run_promtool("test", "rules", "scenario.yml", folder=tmp_path)


def test_every_alert_is_in_the_scenario(shipped: Path):
    alerts = [name for name in rule_expressions(shipped) if name.startswith("RAGCache")]
    assert sorted(alerts) == sorted(f"RAGCache{name}" for name in ALERTS)


def metric_names(expression: str) -> set[str]:
    found = set(re.findall(r"ragcache_\w+", expression))
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in found}


def known_names() -> set[str]:
    names = {"ragcache_time_to_first_token_seconds", SCHEDULING.name}
    for metric, _, _ in sample_figures(CacheStats(drift=0.1)):
        names.add(metric.name + "_total" * (metric.kind is MetricKind.COUNTER))
    return names


def test_board_and_rules_name_only_metrics_that_there_are(shipped: Path):
    texts = [*queries(shipped).values(), (shipped / "ragcache-rules.yml").read_text()]
    used = set().union(*(metric_names(text) for text in texts))
    used = {name for name in used if not name.endswith("_rules")}
    assert used <= known_names()
    # And nothing that the tiers count is left out of the board.
    shown = set().union(*(metric_names(text) for text in queries(shipped).values()))
    unseen = known_names() - shown
    assert unseen == {
        "ragcache_forgotten_documents_total",
        "ragcache_output_tokens_total",
        "ragcache_requests_total",
        "ragcache_retries_total",
        "ragcache_wasted_prefill_tokens_total",
    }


def test_panels_of_the_board_do_not_lie_on_one_another(shipped: Path):
    board = json.loads((shipped / "ragcache-grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


# -- a real Prometheus ---------------------------------------------------------------------------


def test_a_real_prometheus_scrapes_an_engine_and_answers_every_panel(
    memory_engine: RAGCacheEngine, shipped: Path, prometheus_on: Any
):
    registry = CollectorRegistry()
    registry.register(memory_engine.collector())
    server, thread = start_http_server(0, "127.0.0.1", registry)
    tides = Document("tides", "The moon pulls the oceans and the tides follow it " * 9)
    try:
        with prometheus_on(server.server_port, shipped / "ragcache-rules.yml") as watch:
            watch.wait_for('up{job="ragcache"} == 1')
            for number in range(4):
                memory_engine.generate(f"{tides.text}\n\nQuestion {number}?", [tides])
            expected = memory_engine.stats().tiers.device_tokens
            watch.wait_for(f'ragcache_prompt_tokens_total{{source="device"}} == {expected}')
            elsewhere = {"Requests that run or wait B", "Likeness of rechecked answers A"}
            idle = {"Time to first token", "Scheduling time"}  # quantiles of nothing, later on
            for panel, expression in queries(shipped).items():
                if panel.startswith(tuple(idle)) or panel in elsewhere:
                    watch.query(expression)
                else:
                    assert watch.wait_for(expression), panel
            watch.wait_for("ragcache:hit_ratio:rate15m > 0")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
