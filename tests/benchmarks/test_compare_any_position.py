"""How benchmarks/compare.py compares exact with approximate reuse: a run without a model, its report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("faiss")
pytest.importorskip("langchain_community")

from compare import main
from comparing import plan as plans
from comparing.closeness import compare
from comparing.corpus_files import StoredSet, build_store
from comparing.figures import differing_answers, system_figures
from comparing.plan import PLANS, WARMED_PART
from comparing.plays import Play, Seen, Warming
from comparing.plots import draw_closeness
from comparing.record import RunRecord
from comparing.report.answer_checks import answers as answers_section
from comparing.report.any_position import any_position, read_closeness
from comparing.systems import ANYWHERE, FULL, OFF, RAGCACHE, SYSTEMS, Sizes
from word_bags import WordBags

from ragcache_cli import embedding
from ragcache_cli.prompts import CHATML
from ragcache_engine import EngineConfig


def play(
    system: str, ttft_s: float, *, cached: int = 0, borrowed: int = 0, text: str = "x"
) -> Play:
    answer: dict[str, Any] = {
        "question": 0,
        "ttft_s": ttft_s,
        "total_s": ttft_s,
        "search_s": 0.0,
        "prompt": 100,
        "output": 1,
        "cached": [cached, 0, 0],
        "borrowed": borrowed,
        "recomputed": 12 if borrowed else 0,
        "text": text,
    }
    return Play(WARMED_PART, "squad, top-5", system, "1 at a time", None, 0, 1.0, 1.0, 0.0, 0.0,
                [answer] * 4)  # fmt: skip


@pytest.fixture
def record() -> RunRecord:
    seen = Seen(
        plays=[
            play("off", 0.8),
            play("on", 0.6, cached=20),
            play("ragcache", 0.5, cached=30, text="y"),
            play("anywhere-0", 0.1, cached=20, borrowed=60, text="z"),
        ],
        warmed=[Warming(WARMED_PART, "squad, top-5", "anywhere-0", 0, 80, 33.3, 24_000, 23_000)],
    )
    return RunRecord(
        "A report", "bench", {}, {}, Sizes("small"), None, seen, [],
        studies={
            "closeness": {
                "off": {"asked": 24, "equal": 24, "rouge_l": 1.0, "contained": 0.5},
                "anywhere-0": {"asked": 24, "equal": 9, "rouge_l": 0.81, "contained": None},
            }
        },
    )  # fmt: skip


def test_exact_and_borrowed_tokens_have_columns_of_their_own(record: RunRecord):
    text = "\n".join(any_position(record))
    (row,) = [line for line in text.splitlines() if "| approximate | 0.100" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "RAGCache anywhere, ratio 0"
    assert cells[5:9] == ["20%", "60%", "12%", "20"]  # exact, borrowed, computed anew, computed
    assert "| RAGCache | exact | 0.500" in text


def test_the_report_says_what_warming_took_and_how_close_answers_were(record: RunRecord):
    text = "\n".join(any_position(record))
    assert "| squad, top-5 | RAGCache anywhere, ratio 0 | 80 | 33.3 | 24,000 | 23,000 |" in text
    assert "1 at a time, documents warmed, 4 requests" in text
    assert "| RAGCache anywhere, ratio 0 | approximate | 0.810 | 9 of 24 |  |" in text
    assert "| vLLM, no cache | exact | 1.000 | 24 of 24 | 50.0% |" in text


def test_answers_to_another_question_set_have_a_table_of_their_own(record: RunRecord):
    record.studies["closeness, nq_open"] = {
        "off": {"asked": 20, "equal": 20, "rouge_l": 1.0, "contained": None}
    }
    text = "\n".join(any_position(record))
    assert "to 24 questions, compared" in text
    assert "to 20 questions of nq_open, compared" in text
    assert text.count("quality.png") == 1


def test_a_run_without_such_parts_has_no_such_section(record: RunRecord):
    record.seen.plays = []
    assert not list(any_position(record))


def test_approximate_answers_are_exempt_by_name_from_the_check_that_answers_are_equal(
    record: RunRecord,
):
    pairs = [(one.left, one.right, one.differing) for one in differing_answers(record.seen.plays)]
    assert pairs == [("off", "on", 0), ("off", "ragcache", 4)]
    text = "\n".join(answers_section(record))
    assert "Approximate answers are not among them: those of RAGCache anywhere, ratio 0." in text


def test_borrowed_tokens_do_not_count_as_computed_nor_as_cached(record: RunRecord):
    figures = system_figures([record.seen.plays[-1]])
    assert (figures.cached, figures.borrowed, figures.computed_tokens) == ((0.2, 0.0, 0.0), 0.6, 20)


def test_answers_without_these_figures_of_an_earlier_run_can_be_read(record: RunRecord):
    earlier = record.seen.plays[0]
    for answer in earlier.answers:
        answer.pop("borrowed", None)
        answer.pop("recomputed", None)
    assert system_figures([earlier]).borrowed == 0


def test_the_picture_is_drawn_only_where_answers_were_compared(record: RunRecord, tmp_path: Path):
    path = tmp_path / "quality.png"
    draw_closeness(record.seen.plays, record.systems, {}, path)
    assert not path.exists()
    draw_closeness(record.seen.plays, record.systems, read_closeness(record), path)
    assert path.stat().st_size > 1000


def test_closeness_counts_equal_answers_and_accepted_ones():
    full = ["in Paris", "in Rome", ""]
    found = compare(["in Paris", "near Rome", ""], full, [("Paris",), (), ("x",)])
    assert (found.asked, found.equal, found.contained) == (3, 2, 0.5)
    assert found.rouge_l == pytest.approx((1 + 0.5 + 1) / 3)
    assert compare(["a"], ["b"], [()]).contained is None


@pytest.mark.parametrize("name", sorted(PLANS.keys() - {"parts"}))
def test_every_plan_compares_warmed_with_not_warmed_and_asks_for_closeness(name: str):
    groups = PLANS[name]("demo").groups
    (group,) = [one for one in groups if all(each in one.systems for each in ANYWHERE)]
    assert [part.is_warmed for part in group.parts] == [False, True]
    assert group.studies["closeness"] >= 20
    assert OFF in group.systems
    assert FULL in group.systems


def test_only_systems_named_so_may_change_answers():
    approximate = {one.key for one in SYSTEMS.values() if one.is_approximate}
    assert approximate == {"anywhere-0", "anywhere-0.15"}
    assert all(
        one.is_approximate == (one.settings.get("reuse") == "anywhere") for one in SYSTEMS.values()
    )


def test_no_system_rechecks_answers_beside_the_one_that_is_asked():
    ours = [one for one in SYSTEMS.values() if one.kind == RAGCACHE]
    configs = [EngineConfig.model_validate({"model": "any", **one.settings}) for one in ours]
    assert not any(one.reuse == "anywhere" and one.recheck_share for one in configs)


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_the_store_finds_the_neighbours_of_documents_without_embedding_them(kind: str):
    import faiss

    documents = {"a": "apples are red", "b": "apples are green", "c": "the sea"}
    vectors = WordBags().embed(list(documents.values()))
    index = faiss.IndexFlatL2(64)
    if kind == "ivf":
        index = faiss.IndexIVFFlat(index, 64, 1)
        index.train(vectors)
    index.add(vectors)
    store = build_store(StoredSet(["red?"], documents, list(documents), CHATML, index, vectors[:1]))
    from ragcache_integrations.langchain.neighbours import corpus_of
    from ragcache_integrations.langchain.retriever import engine_document

    asked = [engine_document(store.docstore.search("row-0"))]
    (neighbour,) = corpus_of(store, engine_document).find(asked)
    assert neighbour is not None
    assert neighbour.id == "b"


def test_a_whole_run_warms_documents_and_compares_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def tiny(main: str) -> plans.Plan:
        group = plans.anywhere_group(main, requests=1, rounds=1, questions=3, memory=2)
        return plans.Plan("quick", (group,), 0)

    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    monkeypatch.setitem(PLANS, "quick", tiny)
    corpus = tmp_path / "fruit"
    corpus.mkdir()
    names = ("apples", "pears", "plums", "figs", "dates", "limes")
    for name in names:
        (corpus / f"{name}.txt").write_text(f"All that is known about {name}. " * 20)
    log = tmp_path / "log.txt"
    log.write_text("".join(f"What about {name}?\n" for name in names))
    out = tmp_path / "out"
    data = ["--corpus", str(corpus), "--questions", str(log), "--backend", "memory"]
    asked = ["--systems", "ragcache", "anywhere-0"]
    assert main([*data, "--quick", *asked, "--output", str(out)]) == 0
    raw = json.loads(gzip.decompress((out / "raw.json.gz").read_bytes()))["report"]
    warmed = raw["seen"]["warmed"]
    assert [one["system"] for one in warmed] == ["ragcache", "anywhere-0"]
    assert all(one["documents"] >= 5 for one in warmed)
    assert "documents warmed" in (out / "report.md").read_text()
