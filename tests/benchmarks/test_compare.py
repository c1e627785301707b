"""benchmarks/compare.py: what it refuses, what it writes, and a whole run without a model."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("faiss")
pytest.importorskip("langchain_community")

import compare
from compare import main
from comparing import drive, results
from comparing import plan as plans
from comparing.corpora import live_tokens
from comparing.errors import BenchFailed
from comparing.plan import DEVICE_WARM, PLANS, WARM
from comparing.plays import Play
from comparing.question_sets import read_own_questions
from comparing.record import RunRecord
from comparing.report.sections import compose_report
from comparing.run import results_folder
from comparing.systems import FULL, SYSTEMS, Sizes
from comparing.worker_client import Worker
from comparing.workload import Request
from word_bags import WordBags

from ragcache_cli import embedding
from ragcache_cli.machine import this_machine

KEPT = Path(compare.__file__).parent / "results" / "2026-11-26-2-cores"


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


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("main_set", ["squad", "demo"])
def test_in_no_plan_does_a_system_play_the_same_point_twice(name: str, main_set: str):
    plan = PLANS[name](main_set)
    played = [
        (part.name, part.trace.name, load.name, system.key)
        for group in plan.groups
        for part in group.parts
        for load in part.loads
        for system in group.systems
        if part.systems is None or system.key in part.systems
    ]
    assert len(played) == len(set(played))


def test_a_whole_run_leaves_report_plot_and_raw_figures(
    own_data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def tiny(main: str) -> plans.Plan:
        part = plans.Part("main", plans.TraceSpec(main, 2, 1.0), plans.rates(0.5, 1.0), 3, 4, 2)
        return plans.Plan("quick", (plans.Group((FULL,), (part,)),), 0)

    monkeypatch.setitem(PLANS, "quick", tiny)
    out = tmp_path / "out"
    code = main([*own_data, "--quick", "--systems", "ragcache", "fifo", "--output", str(out)])
    assert code == 0
    report = (out / "report.md").read_text()
    assert "## own, top-2, Zipf 1, at 0.5 of capacity" in report
    assert "| RAGCache, no reordering |" in report
    assert "--corpus" in report
    assert "documents" in report.split("## Traces")[1]
    assert (out / "ttft.png").stat().st_size > 1000
    raw = json.loads(gzip.decompress((out / "raw.json.gz").read_bytes()))
    assert "/" not in raw["report"]["sizes"]["model"]
    plays = raw["report"]["seen"]["plays"]
    assert len(plays) == 2 * 2 * 2
    first, second = plays[:2]
    assert {first["system"], second["system"]} == {"ragcache", "fifo"}
    asked = [[one["question"] for one in play["answers"]] for play in (first, second)]
    assert asked[0] == asked[1]
    assert [one["at_s"] for one in first["answers"]] == [one["at_s"] for one in second["answers"]]
    assert any(sum(one["cached"]) for play in plays for one in play["answers"])
    (out / "report.md").unlink()
    assert main(["--report", str(out)]) == 0
    assert (out / "report.md").read_text() == report


def test_each_start_warms_up_alike_and_is_asked_what_no_other_was(
    own_data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def tiny(main: str) -> plans.Plan:
        part = plans.Part("main", plans.TraceSpec(main, 2, None), (plans.ONE_BY_ONE,), 1, 1, 1)
        systems = (FULL, SYSTEMS["no-speculation"], SYSTEMS["canonical"])
        return plans.Plan("quick", (plans.Group(systems, (part,), 2),), 0)

    monkeypatch.setitem(PLANS, "quick", tiny)
    out = tmp_path / "out"
    assert main([*own_data, "--quick", "--output", str(out)]) == 0
    raw = json.loads(gzip.decompress((out / "raw.json.gz").read_bytes()))["report"]
    plays = raw["seen"]["plays"]
    asked = [(play["start"], play["round"], play["answers"][0]["question"]) for play in plays]
    assert asked == [(0, 0, 1)] * 3 + [(1, 1, 2)] * 3
    told = raw["seen"]["told"]
    assert [one["start"] for one in told] == [0, 0, 0, 1, 1, 1]
    started = [one["system"] for one in told]
    assert started[3:] == started[2::-1]  # none has the place of the first one always


def test_a_system_without_host_memory_is_warmed_by_the_last_requests_alone():
    prefilled = [Request(number, 0.0, 1) for number in range(WARM)]
    warmed_by = {
        key: drive.choose_warming(prefilled, SYSTEMS[key]) for key in ("on", "lru", "ragcache")
    }
    assert warmed_by == {
        "on": prefilled[-DEVICE_WARM:],
        "lru": prefilled,
        "ragcache": prefilled,
    }


def test_a_run_that_breaks_off_in_a_round_reports_the_rounds_before_it(
    own_data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def tiny(main: str) -> plans.Plan:
        part = plans.Part("main", plans.TraceSpec(main, 2, 1.0), (plans.ONE_BY_ONE,), 1, 2, 2)
        systems = (FULL, SYSTEMS["no-speculation"])
        return plans.Plan("quick", (plans.Group(systems, (part,)),), 0)

    played = []

    def breaks_off(*arguments: Any) -> Play:
        if len(played) == 3:
            raise BenchFailed("its process ended by itself")
        played.append(play(*arguments))
        return played[-1]

    play = drive._play_once
    monkeypatch.setattr(drive, "_play_once", breaks_off)
    monkeypatch.setitem(PLANS, "quick", tiny)
    out = tmp_path / "out"
    assert main([*own_data, "--quick", "--output", str(out)]) == 1
    raw = json.loads(gzip.decompress((out / "raw.json.gz").read_bytes()))["report"]
    assert [play["round"] for play in raw["seen"]["plays"]] == [0, 0]
    assert "## own, top-2, Zipf 1, 1 at a time" in (out / "report.md").read_text()


def test_the_kept_report_is_what_its_raw_figures_give(tmp_path: Path):
    shutil.copy(KEPT / "raw.json.gz", tmp_path)
    assert main(["--report", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == (KEPT / "report.md").read_text()


def test_a_report_is_not_written_again_from_what_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "raw.json.gz").write_bytes(gzip.compress(b'{"report": {"title": "no more"}}'))
    assert main(["--report", str(tmp_path)]) == 1
    assert "raw.json.gz cannot be read" in capsys.readouterr().err


def test_a_report_that_fails_halfway_does_not_end_the_measuring(
    own_data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    def tiny(main: str) -> plans.Plan:
        def group(number: int) -> plans.Group:
            trace = plans.TraceSpec(main, 1 + number, 1.0)
            return plans.Group((FULL,), (plans.Part("main", trace, plans.rates(0.5), 1, 2, 1),))

        return plans.Plan("quick", (group(0), group(1)), 0)

    def failing_once(record: RunRecord) -> str:
        if len({play.trace for play in record.seen.plays}) == 1:
            raise ZeroDivisionError("of nothing")
        return compose_report(record)

    monkeypatch.setitem(PLANS, "quick", tiny)
    monkeypatch.setattr(results, "compose_report", failing_once)
    out = tmp_path / "out"
    assert main([*own_data, "--quick", "--output", str(out)]) == 0
    assert "only raw figures: ZeroDivisionError: of nothing" in capsys.readouterr().out
    report = (out / "report.md").read_text()
    assert "own, top-1" in report
    assert "own, top-2" in report


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--questions", "missing.txt"], "missing.txt cannot be read"),
        (["--corpus", "nowhere"], "nowhere"),
        (["--systems", "vllm9"], "there is no system 'vllm9'"),
        (["--device-cache", "much"], "'much' is no size"),
        (["--context", "40"], "fits the context"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    own_data: list[str], changed: list[str], said: str, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):  # fmt: skip
    assert main([*own_data, "--output", str(tmp_path / "out"), *changed]) == 1
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_corpus_without_questions_is_refused(
    own_data: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main([*own_data[:2], "--backend", "memory"]) == 1
    assert "go together" in capsys.readouterr().err


def test_an_empty_query_log_is_refused(
    own_data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "none").write_text("\n\n")
    assert main([*own_data, "--questions", str(tmp_path / "none")]) == 1
    assert "holds no question" in capsys.readouterr().err


def test_answers_of_a_query_log_are_those_accepted(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text(
        '{"query": "a?", "answers": ["x", "y"]}\n\nplain?\n{"text": "b?", "answer": "z"}\n'
    )
    found = [(question.text, question.answers) for question in read_own_questions(log)]
    assert found == [("a?", ("x", "y")), ("plain?", ()), ("b?", ("z",))]


def test_a_system_that_does_not_start_says_why(tmp_path: Path):
    sizes = Sizes("no/such/model/anywhere", backend="vllm", context_tokens=64)
    with Worker(FULL, sizes, tmp_path / "log") as worker:
        worker.begin_start()
        with pytest.raises(BenchFailed, match="RAGCache: "):
            worker.wait_until_started()


def test_beginnings_that_prompts_share_are_counted_once():
    first, second = list(range(100)), [*range(64), *range(200, 236)]
    assert live_tokens([first]) == 96
    assert live_tokens([first, first]) == 96
    assert live_tokens([first, second]) == 96 + 32


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("main_set", ["squad", "demo"])
def test_plans_with_a_main_part_begin_with_it_and_all_have_ragcache_in_every_group(
    name: str, main_set: str
):
    plan = PLANS[name](main_set)
    assert plan.groups[0].parts[0].name == "main" or name not in ("quick", "usual")
    assert all(FULL in group.systems for group in plan.groups)
    sets = {part.trace.set for group in plan.groups for part in group.parts}
    assert main_set == "squad" or sets == {"demo"}


def test_reuse_at_any_position_is_measured_on_two_sets_as_they_came_and_with_zipf_weights():
    (group,) = PLANS["anywhere"]("squad").groups
    traces = {(one.trace.set, one.trace.zipf) for one in group.parts}
    assert traces == {(name, zipf) for name in ("squad", "nq_open") for zipf in (None, plans.SKEW)}
    assert {one.is_warmed for one in group.parts} == {True, False}
    assert set(group.studies) == {"closeness", "closeness, nq_open"}


@pytest.mark.parametrize("name", ["quick", "usual"])
def test_what_throughput_is_told_by_begins_where_nobody_is_saturated(name: str):
    mains = [part for group in PLANS[name]("squad").groups for part in group.parts]
    lowest = [min(load.rate or 0 for load in part.loads) for part in mains if part.name == "main"]
    assert lowest
    assert all(0 < rate < 1 for rate in lowest)


def test_no_run_overwrites_the_raw_figures_of_another(
    own_data: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    machine, today = replace(this_machine(), cores=2, gpus=()), date(2026, 11, 22)
    for name in ("2026-11-22-2-cores", "2026-11-22-2-cores-2", "2026-11-22-2-cores-3"):
        folder = results_folder(machine, today)
        assert folder == Path("benchmarks", "results", name)
        folder.mkdir(parents=True)
        (folder / results.RAW).write_bytes(b"an hour's work")
    assert main([*own_data, "--quick", "--output", str(folder)]) == 1
    assert "choose another --output" in " ".join(capsys.readouterr().err.split())
    assert (folder / results.RAW).read_bytes() == b"an hour's work"
