"""benchmarks/compare.py: what it refuses, what it writes, and a whole run without a model."""

from __future__ import annotations

import gzip
import json
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
import faiss
from compare import main, results_folder
from comparing import drive, questions
from comparing import plan as plans
from comparing.figures import Play
from comparing.plan import DEVICE_WARM, PLANS, WARM
from comparing.questions import QuestionSet, build_store, live_tokens
from comparing.record import RAW, RunRecord
from comparing.report import compose_report
from comparing.systems import ANYWHERE, DEFAULTS, FULL, OFF, RAGCACHE, SYSTEMS, Sizes
from comparing.worker_client import Worker
from comparing.workload import Request
from word_bags import WordBags

from ragcache_cli.errors import CommandError
from ragcache_cli.machine import this_machine
from ragcache_engine import EngineConfig

KEPT = Path(compare.__file__).parent / "results" / "2026-11-26-2-cores"
MEMORY = ["--backend", "memory", "--quick"]


def fruit_set() -> QuestionSet:
    names = ("apples", "pears", "plums", "figs", "dates", "limes")
    documents = {name: f"All that is known about {name}. " * 20 for name in names}
    asked = [f"What about {name}?" for name in names]
    index = faiss.IndexFlatL2(64)
    index.add(WordBags().embed(list(documents.values())))
    answers = [["known"], *[[]] * 5]
    return QuestionSet(asked, answers, documents, names, index, WordBags().embed(asked))


@pytest.fixture(autouse=True)
def _asks_about_fruit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "main_set", lambda: "fruit")
    monkeypatch.setattr(questions, "load_set", lambda name, context_tokens: fruit_set())


def use_plan(monkeypatch: pytest.MonkeyPatch, *groups: plans.Group) -> None:
    monkeypatch.setitem(PLANS, "quick", lambda main: plans.Plan("quick", groups))


def read_raw(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(gzip.decompress((out / RAW).read_bytes()))["report"]
    return report


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    part = plans.Part("main", plans.TraceSpec("fruit", 2, 1.0), plans.rates(0.5, 1.0), 3, 4, 2)
    use_plan(monkeypatch, plans.Group((FULL,), (part,)))
    out = tmp_path / "out"
    assert main([*MEMORY, "--systems", "ragcache", "fifo", "--out", str(out)]) == 0
    report = (out / "report.md").read_text()
    assert "## main: fruit, top-2, Zipf 1, at 0.5 of capacity" in report
    assert "| RAGCache, no reordering |" in report
    assert "compare.py --quick --systems ragcache fifo --seed 1" in report
    assert "documents" in report.split("## Traces")[1]
    assert (out / "ttft.png").stat().st_size > 1000
    raw = read_raw(out)
    assert "/" not in raw["sizes"]["model"]
    plays = raw["seen"]["plays"]
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


def test_the_system_whose_speed_sets_the_rates_has_a_warm_cache_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    part = plans.Part("main", plans.TraceSpec("fruit", 2, None), plans.rates(0.5), 3, 3, 1)
    use_plan(monkeypatch, plans.Group((FULL,), (part,)))
    # Each question again, in the same order, so that whoever was warmed has all of them.
    monkeypatch.setattr(drive, "draw_questions", lambda *_: [0, 1, 2] * 2)
    monkeypatch.setattr(drive, "CAPACITY_QUESTIONS", 1)
    out = tmp_path / "out"
    assert main([*MEMORY, "--systems", "ragcache", "fifo", "--out", str(out)]) == 0
    plays = read_raw(out)["seen"]["plays"]
    assert [play["system"] for play in plays] == ["ragcache", "fifo"]
    first, second = ([sum(answer["cached"]) for answer in play["answers"]] for play in plays)
    assert first == second
    assert all(first)


def test_a_whole_run_warms_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_plan(monkeypatch, plans.anywhere_group("fruit", 2))
    out = tmp_path / "out"
    assert main([*MEMORY, "--systems", "ragcache", "anywhere-0", "--out", str(out)]) == 0
    warmed = read_raw(out)["seen"]["warmed"]
    assert [one["system"] for one in warmed] == ["ragcache", "anywhere-0"]
    assert all(one["documents"] >= 5 for one in warmed)
    assert "documents warmed" in (out / "report.md").read_text()


def test_each_start_warms_up_alike_and_is_asked_what_no_other_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    part = plans.Part("main", plans.TraceSpec("fruit", 2, None), (plans.ONE_BY_ONE,), 1, 1, 1)
    systems = (FULL, SYSTEMS["no-speculation"], SYSTEMS["canonical"])
    use_plan(monkeypatch, plans.Group(systems, (part,), 2))
    out = tmp_path / "out"
    assert main([*MEMORY, "--out", str(out)]) == 0
    seen = read_raw(out)["seen"]
    asked = [
        (play["start"], play["round"], play["answers"][0]["question"]) for play in seen["plays"]
    ]
    assert asked == [(0, 0, 1)] * 3 + [(1, 1, 2)] * 3
    assert [one["start"] for one in seen["told"]] == [0, 0, 0, 1, 1, 1]
    started = [one["system"] for one in seen["told"]]
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    part = plans.Part("main", plans.TraceSpec("fruit", 2, 1.0), (plans.ONE_BY_ONE,), 1, 2, 2)
    played = []

    def breaks_off(*arguments: Any) -> Play:
        if len(played) == 3:
            raise CommandError("its process ended by itself")
        played.append(play(*arguments))
        return played[-1]

    play = drive._play_once
    monkeypatch.setattr(drive, "_play_once", breaks_off)
    use_plan(monkeypatch, plans.Group((FULL, SYSTEMS["no-speculation"]), (part,)))
    out = tmp_path / "out"
    assert main([*MEMORY, "--out", str(out)]) == 1
    assert [play["round"] for play in read_raw(out)["seen"]["plays"]] == [0, 0]
    assert "## main: fruit, top-2, Zipf 1, 1 at a time" in (out / "report.md").read_text()


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    def group(top_k: int) -> plans.Group:
        trace = plans.TraceSpec("fruit", top_k, 1.0)
        return plans.Group((FULL,), (plans.Part("main", trace, plans.rates(0.5), 1, 2, 1),))

    def failing_once(out: Path, record: RunRecord) -> None:
        if len({play.trace for play in record.seen.plays}) == 1:
            raise ZeroDivisionError("of nothing")
        (out / "report.md").write_text(compose_report(record))

    use_plan(monkeypatch, group(1), group(2))
    monkeypatch.setattr(compare, "write_report", failing_once)
    out = tmp_path / "out"
    assert main([*MEMORY, "--out", str(out)]) == 0
    assert "only raw figures: ZeroDivisionError: of nothing" in capsys.readouterr().out
    report = (out / "report.md").read_text()
    assert "fruit, top-1" in report
    assert "fruit, top-2" in report


def test_prompts_that_do_not_fit_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(
        compare, "Sizes", lambda *some, **more: Sizes(*some, **more, context_tokens=40)
    )
    assert main([*MEMORY, "--out", str(tmp_path / "out")]) == 1
    assert "no prompt of fruit" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_system_that_does_not_start_says_why(tmp_path: Path):
    sizes = Sizes("no/such/model/anywhere", backend="vllm", context_tokens=64)
    with (
        Worker(FULL, sizes, tmp_path / "log") as worker,
        pytest.raises(CommandError, match="RAGCache: "),
    ):
        worker.start()


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
    assert group.likened == ("squad", "nq_open")


@pytest.mark.parametrize("name", sorted(PLANS.keys() - {"parts"}))
def test_every_plan_compares_warmed_with_not_warmed_and_likens_answers(name: str):
    groups = PLANS[name]("demo").groups
    (group,) = [one for one in groups if all(each in one.systems for each in ANYWHERE)]
    assert [part.is_warmed for part in group.parts] == [False, True]
    assert group.likened == ("demo",)
    assert OFF in group.systems


def test_only_systems_named_so_may_change_answers():
    approximate = {one.key for one in SYSTEMS.values() if one.is_approximate}
    assert approximate == {"anywhere", "anywhere-0", "anywhere-0.15"}
    assert all(
        one.is_approximate == (one.settings.get("reuse") == "anywhere") for one in SYSTEMS.values()
    )


def test_only_the_system_with_every_default_rechecks_answers():
    ours = [one for one in SYSTEMS.values() if one.kind == RAGCACHE and one is not DEFAULTS]
    configs = [EngineConfig.model_validate({"model": "any", **one.settings}) for one in ours]
    assert not any(one.reuse == "anywhere" and one.recheck_share for one in configs)


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_the_store_finds_the_neighbours_of_documents_without_embedding_them(kind: str):
    documents = {"a": "apples are red", "b": "apples are green", "c": "the sea"}
    vectors = WordBags().embed(list(documents.values()))
    index = faiss.IndexFlatL2(64)
    if kind == "ivf":
        index = faiss.IndexIVFFlat(index, 64, 1)
        index.train(vectors)
    index.add(vectors)
    store = build_store(QuestionSet(["red?"], [[]], documents, list(documents), index, vectors[:1]))
    from ragcache_integrations.langchain.neighbours import corpus_of
    from ragcache_integrations.langchain.retriever import engine_document

    asked = [engine_document(store.docstore.search("row-0"))]
    (nearest,) = corpus_of(store, engine_document).look_up(asked)
    assert nearest[0].id == "b"


def test_no_run_overwrites_the_raw_figures_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    machine, today = replace(this_machine(), cores=2, gpus=()), date(2026, 11, 22)
    for name in ("2026-11-22-2-cores", "2026-11-22-2-cores-2", "2026-11-22-2-cores-3"):
        folder = results_folder(machine, today)
        assert folder == Path("benchmarks", "results", name)
        folder.mkdir(parents=True)
        (folder / RAW).write_bytes(b"an hour's work")
    assert main([*MEMORY, "--out", str(folder)]) == 1
    assert "choose another --out" in " ".join(capsys.readouterr().err.split())
    assert (folder / RAW).read_bytes() == b"an hour's work"
