"""`ragcache calibrate` on an engine whose answers are as unlike as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pytest.importorskip("faiss")

from word_bags import WordBags  # noqa: E402

from ragcache_cli import embedding  # noqa: E402
from ragcache_cli.calibrating.cases import Asked, draw, read_asked  # noqa: E402
from ragcache_cli.calibrating.likeness import (  # noqa: E402
    Grade,
    Likeness,
    Run,
    bound_mean,
    choose,
    has_accuracy,
)
from ragcache_cli.errors import BadTrace  # noqa: E402
from ragcache_cli.main import main  # noqa: E402
from ragcache_engine import (  # noqa: E402
    DocumentReuse,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
)
from ragcache_engine.anywhere.calibration import CalibrationKey, find_calibration  # noqa: E402
from ragcache_engine.protocols import BackendRequest, Delta  # noqa: E402
from ragcache_engine.tiers.provenance import ReuseReport  # noqa: E402

FRUITS = ("apples", "pears", "plums", "figs")


class Borrowing(MemoryBackend):
    """Answers with ten words. `wrong_words` says how many of them are wrong at a ratio.

    noise: how many are wrong where requests are answered exactly beside others.
    """

    def __init__(
        self, wrong_words: Callable[[float], int], noise: int = 0, context_tokens: int = 8192
    ) -> None:
        super().__init__(
            lambda prompt: "one two three four five six seven eight nine ten",
            context_tokens=context_tokens,
        )
        self.borrows = True
        self._wrong_words = wrong_words
        self._noise = noise
        self.contexts: list[dict[str, object]] = []
        self.never_borrows = False
        self._exact_now = 0

    async def _has_company(self) -> bool:
        """Wait a moment for other exact requests; return whether there were any."""
        self._exact_now += 1
        met = self._exact_now > 1
        await asyncio.sleep(0.05)
        met |= self._exact_now > 1
        self._exact_now -= 1
        return met

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.contexts.append(dict(request.contexts))
        names = list(dict.fromkeys(one.document_id for one in request.segments if one.document_id))
        borrows = not request.is_exact and len(names) > 1 and not self.never_borrows
        if request.is_exact:
            wrong = self._noise if await self._has_company() else 0
        else:
            wrong = self._wrong_words(request.recompute_ratio or 0.0)
        reuse = ReuseReport(tuple(DocumentReuse(name, 9, None, 9) for name in names))
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                if wrong > 0:
                    delta = replace(
                        delta, text=" bad", token_ids=tuple(-1 for _ in delta.token_ids)
                    )
                    wrong -= 1
                if delta.finish_reason:
                    why = None if borrows else "too short"
                    delta = replace(delta, reuse=reuse if borrows else None, why_exact=why)
                yield delta


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(embedding, "load_embedder", WordBags)


@pytest.fixture
def calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in FRUITS:
        (corpus / f"{name}.txt").write_text(f"All that is known about {name}. " * 8)
    log = tmp_path / "log.txt"
    log.write_text("".join(f"What about {name} {n}?\n" for name in FRUITS for n in range(3)))

    def run(backend: MemoryBackend, *arguments: str | Path) -> int:
        def start(config: EngineConfig) -> RAGCacheEngine:
            return RAGCacheEngine(config, backend=backend)

        monkeypatch.setattr("ragcache_cli.calibrating.calibrate.start_engine", start)
        given = ["--questions", log, "--corpus", corpus, "--dtype", "float32", *arguments]
        return main(["calibrate", "org/model", *map(str, given)])

    return run


def engine_config(donors: str = "neighbours") -> EngineConfig:
    return EngineConfig.model_validate(
        {
            "model": "org/model",
            "reuse": "anywhere",
            "donors": donors,
            "vllm_args": {"dtype": "float32"},
        }
    )


def test_the_smallest_ratio_whose_answers_are_alike_enough_is_kept(calibrate, capsys):
    assert calibrate(Borrowing(lambda ratio: 0 if ratio >= 0.2 else 3)) == 0
    found = find_calibration(engine_config())
    assert found is not None
    assert (found.recompute_ratio, found.noise, found.target, found.questions) == (0.2, 1, 0.95, 12)
    assert found.measured_on
    said = capsys.readouterr().out
    assert "Kept: recompute_ratio=0.2" in said
    assert "Only 12 answers were compared" in said


def test_a_ratio_is_kept_whose_unlike_answers_are_as_often_right(calibrate, tmp_path: Path, capsys):
    (tmp_path / "log.txt").write_text(
        "".join(
            json.dumps({"question": f"What about {name} {n}?", "answers": ["Ten."]}) + "\n"
            for name in FRUITS
            for n in range(10)
        )
    )
    unlike_but_right = Borrowing(lambda ratio: 3 if ratio else 10)
    assert calibrate(unlike_but_right, "--ratios", "0", "0.1", "0.5") == 0
    found = find_calibration(engine_config())
    assert found is not None
    assert (found.recompute_ratio, found.right, found.exact_right) == (0.1, 1.0, 1.0)
    assert found.least_rouge_l < found.rouge_l < 0.95
    said = " ".join(capsys.readouterr().out.split())
    assert "0.95 times the share of exact answers that are right" in said
    assert "ROUGE-L of 1.000 with each other; it decides nothing" in said
    assert "Right are 100.0% of its answers, and 100.0% of the exact ones" in said


def test_too_few_right_answers_decide_nothing_and_it_says_so(calibrate, tmp_path: Path, capsys):
    gold = tmp_path / "gold.txt"
    gold.write_text("ten\n" * 12)
    assert calibrate(Borrowing(lambda ratio: 3), "--ratios", "0.5", "--gold", gold) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Fewer than 30 exact answers are right: too few to decide" in said


def test_where_no_ratio_passes_it_says_so_and_keeps_none(calibrate, capsys):
    assert calibrate(Borrowing(lambda ratio: 3), "--ratios", "0", "0.5") == 1
    assert "No ratio passes, and none is kept" in capsys.readouterr().out
    assert not CalibrationKey.of(engine_config()).path.exists()


def test_a_ratio_is_measured_against_the_models_own_noise(calibrate):
    noisy = Borrowing(lambda ratio: 2, noise=2)
    assert calibrate(noisy, "--ratios", "0.1", "--target", "0.9") == 0
    found = find_calibration(engine_config())
    assert found is not None
    assert found.rouge_l == pytest.approx(0.8)
    assert 0.8 <= found.noise < 0.9
    assert found.least_rouge_l <= found.lower_bound


def test_the_calibration_is_for_the_donors_that_were_measured(calibrate):
    assert calibrate(Borrowing(lambda ratio: 0), "--donors", "alone") == 0
    assert CalibrationKey.of(engine_config("alone")).path.exists()
    assert not CalibrationKey.of(engine_config("neighbours")).path.exists()


def test_documents_are_borrowed_from_behind_their_neighbours(calibrate):
    backend = Borrowing(lambda ratio: 0)
    assert calibrate(backend, "--ratios", "0") == 0
    assert any(backend.contexts)
    for contexts in backend.contexts:
        assert all(name != context[0] for name, context in contexts.items())  # type: ignore[index]


def test_answers_that_borrowed_nothing_do_not_count(calibrate, capsys):
    backend = Borrowing(lambda ratio: 0)
    backend.never_borrows = True
    assert calibrate(backend) == 1
    error = capsys.readouterr().err
    assert "borrowed anything" in error
    assert "too short" in error


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_asked(
    calibrate, tmp_path: Path, capsys
):
    backend = Borrowing(lambda ratio: 0)
    assert calibrate(backend, "--ratios", "0.1", "--answers", tmp_path) != 0
    (tmp_path / "file").touch()
    assert calibrate(backend, "--ratios", "0.1", "--answers", tmp_path / "file" / "answers") != 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("name another file with --answers") == 2
    assert "Answering" not in said


def test_every_answer_can_be_written_to_a_file(calibrate, tmp_path: Path):
    gold = tmp_path / "gold.txt"
    gold.write_text('five six\n["nowhere", "ten"]\n\n' + "never\n" * 9)
    answers = tmp_path / "answers.jsonl"
    backend = Borrowing(lambda ratio: 0)
    assert calibrate(backend, "--ratios", "0.1", "--answers", answers, "--gold", gold) == 0
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(rows) == 12 * 3
    assert [row["has_gold"] for row in rows if row["way"] == "0.1"][:4] == [True, True, None, False]


def test_prompts_that_are_too_long_are_left_out(calibrate, tmp_path: Path, capsys):
    (tmp_path / "log.txt").write_text(f"What about apples?\n{'What about pears? ' * 300}\n")
    backend = Borrowing(lambda ratio: 0, context_tokens=1024)
    assert calibrate(backend, "--ratios", "0") == 0
    assert "their prompts are too long: 1" in capsys.readouterr().out
    assert calibrate(Borrowing(lambda ratio: 0, context_tokens=128), "--ratios", "0") == 1
    assert "no prompt fits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--ratios", "2"], ["--target", "x"], ["--count", "0"], ["--donors", "any"]]
)
def test_wrong_arguments_are_refused(calibrate, wrong: list[str]):
    with pytest.raises(SystemExit):
        calibrate(Borrowing(lambda ratio: 0), *wrong)


def test_a_setting_that_the_engine_refuses_is_one_line(calibrate, capsys):
    assert calibrate(Borrowing(lambda ratio: 0), "--device-cache", "lots") == 1
    assert "error:" in capsys.readouterr().err


def test_gold_of_another_length_than_the_log_is_refused(tmp_path: Path):
    (tmp_path / "log").write_text("Why?\nWhen?\n")
    (tmp_path / "gold").write_text("so\n")
    with pytest.raises(BadTrace, match="1 lines"):
        read_asked(tmp_path / "log", tmp_path / "gold")


def test_gold_may_stand_in_the_log(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text('Why?\n{"question": "When?", "answers": ["now", "then"]}\n')
    assert read_asked(log, None) == [Asked("Why?"), Asked("When?", ("now", "then"))]


def test_questions_are_drawn_once_each_and_always_the_same():
    asked = [Asked(f"q{n % 40}") for n in range(100)]
    drawn = draw(asked, 10)
    assert drawn == draw(asked, 10)
    assert len({one.question for one in drawn}) == 10
    assert len(draw(asked, 1000)) == 40


def run(
    ratio: float,
    likeness: float,
    right: Sequence[bool] | None = None,
    exact_right: Sequence[bool] | None = None,
) -> Run:
    """Make a run of equally alike answers. exact_right: all of them by default."""
    grades: Sequence[Grade | None] = [None] * 5
    if right is not None:
        pairs = zip(right, exact_right or [True] * len(right), strict=True)
        grades = [Grade(now, exactly, f1=0.5) for now, exactly in pairs]
    return Run(ratio, (), [Likeness(likeness, 1.0, grade, 0.1, True) for grade in grades])


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_bound_lies_between_the_least_value_and_the_mean(values: list[float]):
    bound = bound_mean(values)
    assert min(values) - 1e-9 <= bound <= sum(values) / len(values) + 1e-9


def test_the_bound_covers_the_true_mean_about_as_often_as_it_says():
    dice = np.random.default_rng(0)
    draws = dice.binomial(1, 0.7, size=(200, 60)).astype(float)
    missed = sum(bound_mean(list(row)) > 0.7 for row in draws)
    assert missed / 200 < 0.1


def test_the_smallest_passing_ratio_is_chosen_whatever_the_order():
    runs = [run(0.5, 1.0), run(0.1, 0.96), run(0.0, 0.5)]
    assert choose(runs, 1.0, 0.95) is runs[1]
    assert choose(runs[2:], 1.0, 0.95) is None


def test_where_answers_are_known_right_ones_decide_however_unlike_they_are():
    runs = [run(0.0, 0.9, right=[False] * 9 + [True] * 51), run(0.1, 0.5, right=[True] * 60)]
    assert has_accuracy(runs)
    assert choose(runs, 1.0, 0.95) is runs[1]
    assert choose(runs, 1.0, 0.7) is runs[0]
    assert runs[0].accuracy
    assert runs[0].accuracy.share == pytest.approx(0.85)
    assert runs[0].accuracy.lower_bound < 0.8


def test_a_loss_counts_however_many_answers_were_wrong_before():
    exact = [True] * 40 + [False] * 60
    lost = run(0.1, 0.5, right=[False] * 8 + [True] * 32 + [False] * 60, exact_right=exact)
    assert choose([lost], 1.0, 0.9) is None


@pytest.mark.parametrize("exactly_right", [0, 29])
def test_a_model_that_answers_too_few_questions_is_judged_by_likeness(exactly_right: int):
    right = [True] * exactly_right + [False] * 60
    runs = [run(0.0, 0.5, right, right), run(0.1, 0.96, right, right)]
    assert not has_accuracy(runs)
    assert choose(runs, 1.0, 0.95) is runs[1]


@pytest.mark.vllm
@pytest.mark.timeout(550)
def test_on_a_real_model_full_recomputing_gives_the_exact_answers(
    calibrate, demo_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()  # the model's folder is where it was
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    answers = tmp_path / "answers.jsonl"
    arguments = ["--questions", tmp_path / "log.txt", "--corpus", tmp_path / "corpus"]
    arguments += ["--dtype", "float32", "--count", "4", "--max-tokens", "8", "--ratios", "0", "1"]
    arguments += ["--vllm-arg", "max_model_len=1024", "--device-cache", "200MiB"]
    (tmp_path / "gold.txt").write_text("the apples\n" * 12)
    arguments += ["--target", "1", "--answers", answers, "--gold", tmp_path / "gold.txt"]
    assert main(["calibrate", demo_model, *map(str, arguments)]) == 0
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert {row["rouge_l"] for row in rows if row["way"] in ("exact again", "1")} == {1.0}
    exact, full = (
        [(row["has_gold"], row["f1"]) for row in rows if row["way"] == way]
        for way in ("exact", "1")
    )
    assert exact == full
    assert None not in exact[0]
    assert all(row["borrowed_tokens"] > 0 for row in rows if row["way"] == "0")
    config = engine_config().model_copy(update={"model": demo_model})
    assert find_calibration(config) is not None
