"""benchmarks/full_report.py: its plans, its studies in a run without a model, and kept raw figures."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("faiss")
pytest.importorskip("langchain_community")

import full_report
from studies import hidden_search
from studies.full_plans import FULL_PLANS, TREE_NODES
from word_bags import WordBags

from ragcache_cli import embedding
from ragcache_cli.bench import plan as plans
from ragcache_cli.bench.systems import FULL, SYSTEMS

KEPT = Path(full_report.__file__).parent / "results" / "2026-11-22-2-cores"


@pytest.fixture(autouse=True)
def _an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # so that changes are undone


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments that name a small corpus and the questions on it."""
    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    corpus = tmp_path / "fruit"
    corpus.mkdir()
    for name in ("apples", "pears", "plums", "figs"):
        (corpus / f"{name}.txt").write_text(f"All that is known about {name}. " * 20)
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"question": "What about apples?", "answer": "all"}\n'
        "What about pears?\n"
        '{"question": "What about plums?", "answers": ["known", "all that"]}\n'
    )
    return ["--corpus", str(corpus), "--questions", str(log), "--backend", "memory"]


def test_studies_ask_the_systems_of_a_group_and_stand_in_raw_figures_and_report(
    own_data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def tiny(main: str) -> plans.Plan:
        part = plans.Part("main", plans.TraceSpec(main, 2, None), (plans.ONE_BY_ONE,), 1, 1, 1)
        systems = (FULL, SYSTEMS["no-speculation"], SYSTEMS["canonical"])
        studies = {"quality": 3, "overlap": 4}
        return plans.Plan("quick", (plans.Group(systems, (part,), 2, studies),), 0)

    monkeypatch.setitem(FULL_PLANS, "quick", tiny)
    monkeypatch.setitem(TREE_NODES, "quick", ())
    monkeypatch.setattr(hidden_search, "INDEX_VECTORS", 400)
    out = tmp_path / "out"
    assert full_report.main([*own_data, "--quick", "--output", str(out)]) == 0
    raw = json.loads(gzip.decompress((out / "raw.json.gz").read_bytes()))["report"]
    assert raw["quality"].keys() == {"ragcache", "canonical"}
    assert raw["overlap"]["questions"] == 4
    report = (out / "report.md").read_text()
    assert "## Search hidden by prefill" in report
    assert "Quality, for each setting that changes the prompt" in report
    assert "`python benchmarks/full_report.py --quick --corpus" in report
    (out / "report.md").unlink()
    assert full_report.main(["--report", str(out)]) == 0
    assert (out / "report.md").read_text() == report


def test_the_kept_report_is_what_its_raw_figures_give(tmp_path: Path):
    shutil.copy(KEPT / "raw.json.gz", tmp_path)
    assert full_report.main(["--report", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == (KEPT / "report.md").read_text()


def test_what_cannot_work_is_one_line_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert full_report.main(["--report", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("name", FULL_PLANS)
@pytest.mark.parametrize("main", ["squad", "demo"])
def test_in_no_plan_does_a_system_play_the_same_point_twice(name: str, main: str):
    plan = FULL_PLANS[name](main)
    played = [
        (part.name, part.trace.name, load.name, system.key)
        for group in plan.groups
        for part in group.parts
        for load in part.loads
        for system in group.systems
        if part.systems is None or system.key in part.systems
    ]
    assert len(played) == len(set(played))


@pytest.mark.parametrize("name", FULL_PLANS)
@pytest.mark.parametrize("main", ["squad", "demo"])
def test_plans_with_a_main_part_begin_with_it_and_all_have_ragcache_in_every_group(
    name: str, main: str
):
    plan = FULL_PLANS[name](main)
    assert plan.groups[0].parts[0].name == "main" or name not in ("quick", "usual")
    assert all(FULL in group.systems for group in plan.groups)
    sets = {part.trace.set for group in plan.groups for part in group.parts}
    assert main == "squad" or sets == {"demo"}


def test_reuse_at_any_position_is_measured_on_two_sets_as_they_came_and_with_zipf_weights():
    (group,) = FULL_PLANS["anywhere"]("squad").groups
    traces = {(one.trace.set, one.trace.zipf) for one in group.parts}
    assert traces == {(name, zipf) for name in ("squad", "nq_open") for zipf in (None, plans.SKEW)}
    assert {one.is_warmed for one in group.parts} == {True, False}
    assert set(group.studies) == {"closeness", "closeness, nq_open"}


@pytest.mark.parametrize("name", ["quick", "usual", "full"])
def test_what_throughput_is_told_by_begins_where_nobody_is_saturated(name: str):
    mains = [part for group in FULL_PLANS[name]("squad").groups for part in group.parts]
    lowest = [min(load.rate or 0 for load in part.loads) for part in mains if part.name == "main"]
    assert lowest
    assert all(0 < rate < 1 for rate in lowest)
