"""Runs `ragcache calibrate`: asks, compares, shows, and keeps the ratio that passes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_cli import embedding
from ragcache_cli.calibrating.asking import Asker
from ragcache_cli.calibrating.cases import Case, corpus_of, draw, find_cases, read_asked
from ragcache_cli.calibrating.likeness import Run, choose, compare, has_accuracy
from ragcache_cli.calibrating.report import answer_lines, answers_table, verdict, ways_table
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.engine_settings import make_command_config
from ragcache_cli.errors import CommandError
from ragcache_cli.files import folder_sources
from ragcache_cli.folders import OTHER_HOME, make_folder, write_whole
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME, demo_model
from ragcache_cli.precision import choose_dtype
from ragcache_cli.terminal import Phases
from ragcache_engine import Corpus, EngineConfig, RAGCacheEngine
from ragcache_engine.anywhere.calibration import Calibration, CalibrationKey
from ragcache_engine.config import DonorKind

OTHER_ANSWERS = "name another file with --answers"


@dataclass(frozen=True, slots=True)
class CalibrateSettings:
    """The arguments of the command.

    gold: the accepted answers, if the log has none. count: how many questions to ask. target: what
    answers at a ratio must reach, as a share of what exact ones reach. answers: where to write all
    answers; None for nowhere. engine: further settings of EngineConfig.
    """

    model: str
    questions: Path
    corpus: Path
    dtype: str
    donors: DonorKind
    ratios: Sequence[float]
    target: float
    count: int
    top_k: int
    max_tokens: int
    gold: Path | None
    answers: Path | None
    engine: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """All answers. exact: those that the others are compared with. noise: exact, batched otherwise."""

    cases: Sequence[Case]
    exact: Run
    noise: Run
    runs: Sequence[Run]


def calibrate(settings: CalibrateSettings, console: Console) -> bool:
    """Measure and show; keep the smallest ratio that passes, and return whether there is one.

    Raises RAGCacheError.
    """
    phases = Phases(console)
    config = _configure(settings, phases)
    key = CalibrationKey.of(config)
    make_folder(key.path.parent, OTHER_HOME)
    if settings.answers:
        make_folder(settings.answers.parent, OTHER_ANSWERS)
        if settings.answers.is_dir():
            raise CommandError(f"{settings.answers} is a folder; {OTHER_ANSWERS}")
    cases, corpus = _find_cases(settings, phases)
    with phases.waiting("Starting the engine"):
        engine = start_engine(config)
    with engine:
        asker = Asker(engine, cases, settings.max_tokens)
        if asker.left_out:
            console.print(f"Left out, because their prompts are too long: {asker.left_out}")
        asker.prepare(corpus)
        measured = measure(asker, settings.ratios, phases)
        # Before the engine closes, which takes seconds, and may be interrupted.
        is_kept = _conclude(key, measured, settings, console)
        with phases.waiting("Closing the engine"):
            engine.close()
    return is_kept


def start_engine(config: EngineConfig) -> RAGCacheEngine:
    """Start the engine that is calibrated."""
    return RAGCacheEngine(config)


def measure(asker: Asker, ratios: Sequence[float], phases: Phases) -> Measured:
    """Ask everything in every way. Raises CommandError if no prompt could borrow anything."""
    gold = [case.asked.gold for case in asker.cases]
    with phases.waiting("Answering exactly, one at a time") as done:
        exact = asker.exactly(done)
    with phases.waiting("Answering exactly, many at once") as done:
        noise = compare(asker.exactly_at_once(done), exact, gold)
    with phases.waiting("Computing what documents are borrowed from") as done:
        asker.store_donors(done)
    runs = []
    for ratio in sorted(set(ratios)):
        with phases.waiting(f"Answering at ratio {ratio:g}") as done:
            runs.append(compare(asker.at_ratio(ratio, done), exact, gold, ratio))
        _require_borrowed(runs[-1])
    return Measured(asker.cases, compare(exact, exact, gold), noise, runs)


def _conclude(
    key: CalibrationKey, measured: Measured, settings: CalibrateSettings, console: Console
) -> bool:
    """Show what was measured, and keep the ratio that passes. Returns whether there is one."""
    chosen = choose(measured.runs, measured.noise.rouge_l, settings.target)
    kept = _describe(key, chosen, measured, settings.target) if chosen else None
    _show(measured, kept, settings, console)
    if kept:
        write_whole(key.path, kept.to_json(), OTHER_HOME)
        console.print(f"Written: {escape(str(key.path))}", soft_wrap=True)
        dtype = "" if key.dtype == "auto" else f', vllm_args={{"dtype": "{key.dtype}"}}'
        wanted = f'EngineConfig(reuse="anywhere", donors="{settings.donors}"{dtype})'
        console.print(f"Engines on this model read it by {wanted}.", soft_wrap=True)
    elif key.path.exists():
        console.print(f"An older calibration stays: {escape(str(key.path))}", soft_wrap=True)
    return kept is not None


def _find_cases(settings: CalibrateSettings, phases: Phases) -> tuple[list[Case], Corpus]:
    asked = draw(read_asked(settings.questions, settings.gold), settings.count)
    sources = folder_sources(settings.corpus)
    with phases.waiting("Loading the embedding model"):
        embedder = embedding.load_embedder()
    index = load_corpus_index(settings.corpus, sources, embedder, phases)
    with phases.waiting("Searching for each question"):
        return find_cases(asked, index, embedder, settings.top_k), corpus_of(index)


def _configure(settings: CalibrateSettings, phases: Phases) -> EngineConfig:
    """Return the configuration of an engine that does nothing of its own accord. Raises ConfigError."""
    model = settings.model
    if model == DEMO_MODEL:
        with phases.waiting(f"Preparing the model {DEMO_MODEL_NAME}"):
            model = str(demo_model())
    dtype = choose_dtype(settings.dtype, "vllm", phases)
    chosen = {
        "reuse": "anywhere",
        "recompute_ratio": 0.0,  # each request says its own
        "recheck_share": 0.0,
        "donors": settings.donors,
        "missing_donors": "compute",  # every answer borrows
        "speculation": "off",
    }
    return make_command_config(model, "vllm", dtype, {**chosen, **settings.engine})


def _require_borrowed(run: Run) -> None:
    if not run.counted:
        why = {answer.usage.why_exact for answer in run.answers} - {None}
        raise CommandError(
            f"no answer at ratio {run.ratio:g} borrowed anything, so there is nothing to compare "
            f"({'; '.join(sorted(map(str, why))) or 'for no known reason'}): give a larger --top-k, or "
            f"longer documents"
        )


def _describe(key: CalibrationKey, chosen: Run, measured: Measured, target: float) -> Calibration:
    assert chosen.ratio is not None
    accuracy = chosen.accuracy if has_accuracy(measured.runs) else None
    return Calibration(
        key=key,
        recompute_ratio=chosen.ratio,
        rouge_l=chosen.rouge_l,
        lower_bound=chosen.lower_bound,
        noise=measured.noise.rouge_l,
        target=target,
        questions=len(chosen.counted),
        measured_on=datetime.date.today().isoformat(),
        right=accuracy.share if accuracy else None,
        exact_right=accuracy.exact_share if accuracy else None,
    )


def _show(
    measured: Measured, kept: Calibration | None, settings: CalibrateSettings, console: Console
) -> None:
    exact, noise, runs = measured.exact, measured.noise, measured.runs
    console.print()
    console.print(answers_table(measured.cases, noise, runs))
    console.print()
    console.print(ways_table(exact, noise, runs))
    console.print()
    for line in verdict(kept, noise, settings.target, runs):
        console.print(line, soft_wrap=True)
    if settings.answers:
        lines = "".join(answer_lines(measured.cases, exact, noise, runs))
        write_whole(settings.answers, lines, OTHER_ANSWERS)
        console.print(f"All answers: {escape(str(settings.answers))}", soft_wrap=True)
