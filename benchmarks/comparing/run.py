"""Carry out a benchmark: measure, and write a folder with raw figures, plots and a report."""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from comparing.benchmark import STUDIES, list_left_out, load_set, main_set
from comparing.context import RunContext
from comparing.corpora import Corpora, Tokenize, TraceSummary
from comparing.drive import play_group
from comparing.free_answers import compare_in_float32
from comparing.plan import PLANS, Group, Plan, TraceSpec
from comparing.plays import Seen
from comparing.question_sets import (
    OWN,
    LazyEmbedder,
    QuestionSet,
    own_set,
    read_own_questions,
)
from comparing.record import RunRecord
from comparing.results import RAW, REPORT, holds_run, write_results
from comparing.systems import SYSTEMS, Sizes, choose_systems
from comparing.worker_client import Worker
from ragcache_cli import embedding
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.files import folder_sources
from ragcache_cli.machine import Machine, installed_versions, this_machine
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.model_size import local_folder, model_size
from ragcache_cli.models import DEMO_MODEL
from ragcache_cli.precision import choose_dtype
from ragcache_cli.terminal import Phases

LOG = "systems.log"


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The arguments of the command line.

    plan: its name. systems: their keys; None for those of the plan. out: None for the usual folder.
    """

    plan: str
    corpus: Path | None
    questions: Path | None
    model: str
    backend: str
    dtype: str
    device_bytes: int
    host_bytes: int
    context_tokens: int
    vllm_args: Mapping[str, Any] = field(default_factory=dict)
    systems: tuple[str, ...] | None = None
    out: Path | None = None
    seed: int = 1


def results_folder(machine: Machine, today: date) -> Path:
    """Return benchmarks/results/<date>-<machine>, with -2, -3, ... if an earlier run has that folder.
    The path is relative to the working directory.
    """
    kind = machine.gpus[0].name if machine.gpus else f"{machine.cores}-cores"
    name = "-".join([today.isoformat(), *kind.lower().split()])
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    folders = (Path("benchmarks") / "results" / one for one in names)
    return next(folder for folder in folders if not holds_run(folder))


def measure(settings: BenchSettings, console: Console) -> Path:
    """Measure what the plan says and write the results. Returns their folder.

    Raises RAGCacheError: before anything starts for questions or documents that cannot be read, and
    BenchFailed if a system does not start or fails.
    """
    if settings.out and holds_run(settings.out):
        raise CommandError(
            f"{settings.out / RAW} is of a run already: choose another --output, or move that folder"
        )
    began_s, load = time.monotonic(), os.getloadavg()
    main = OWN if _asks_own_questions(settings) else main_set()
    notes = Phases(Console(stderr=True))
    settings = replace(settings, dtype=choose_dtype(settings.dtype, settings.backend, notes))
    machine = this_machine()
    out = settings.out or results_folder(machine, date.today())

    def say(line: str) -> None:
        minutes = (time.monotonic() - began_s) / 60
        console.print(f"[dim]{minutes:5.1f} min[/dim] {escape(line)}", soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="ragcache-bench-") as folder:
        corpora = _make_corpora(settings, Path(folder), notes)
        plan = keep_systems(PLANS[settings.plan](main), settings.systems)
        sizes = _sizes(settings, corpora)
        abouts = _summarize_traces(plan, corpora, settings.seed)
        out.mkdir(parents=True, exist_ok=True)
        log = out / LOG
        log.unlink(missing_ok=True)
        record = RunRecord(
            title=f"RAGCache against its baselines, {date.today().isoformat()} ({plan.name} run)",
            command=_command(settings),
            machine={**asdict(machine), "cpu": _cpu()},
            versions=installed_versions(),
            sizes=replace(sizes, model=_shown_model(sizes.model)),
            token_bytes=_token_bytes(sizes),
            seen=Seen(),
            abouts=abouts,
            left_out=list_left_out(plan),
            load_average=load,
            systems=SYSTEMS,
        )
        context = RunContext(corpora, main, sizes, log, settings.seed, say)

        def save() -> None:
            record.seconds = time.monotonic() - began_s
            write_results(out, record, plan)

        # Treat SIGTERM like Ctrl-C, so that the measurements so far are written.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            _carry_out(plan, context, record, save)
        finally:
            signal.signal(signal.SIGTERM, before)
            save()
    console.print(f"The report is {escape(str(out / REPORT))}", soft_wrap=True)
    return out


def _carry_out(
    plan: Plan,
    context: RunContext,
    record: RunRecord,
    save: Callable[[], None],
) -> None:
    """Measure into the record, and save it after every group."""
    for group in plan.groups:
        study = partial(_study_group, group, context, record)
        play_group(
            group, context.corpora.prepared, context.sizes, context.log, context.seed, record.seen,
            context.say, study,
        )  # fmt: skip
        try:
            save()  # so that a failure an hour later loses nothing
        except Exception as error:  # the last report raises it; measuring goes on
            context.say(f"no report so far, only raw figures: {type(error).__name__}: {error}")
    if plan.equality:
        record.float32 = compare_in_float32(plan.equality, context)


def _study_group(
    group: Group,
    context: RunContext,
    record: RunRecord,
    workers: Sequence[Worker],
) -> None:
    """Run a group's studies while its systems are up."""
    for name, questions in group.studies.items():
        found = STUDIES[name](questions, workers, context)
        if found is not None:
            record.studies[name] = found


def keep_systems(plan: Plan, keys: Sequence[str] | None) -> Plan:
    """Reduce a plan to these systems; None: all of them. Raises CommandError for an unknown key."""
    if keys is None:
        return plan
    wanted = choose_systems(keys, SYSTEMS)
    groups = []
    for number, group in enumerate(plan.groups):
        # The first group measures all wanted systems, even those that the plan has in no group.
        kept = wanted if number == 0 else tuple(one for one in group.systems if one in wanted)
        if number == 0 or len(kept) > 1:
            groups.append(replace(group, systems=kept))
    return replace(plan, groups=tuple(groups), equality=0)


def _asks_own_questions(settings: BenchSettings) -> bool:
    """Return whether the user gave data of their own. Raises CommandError if it cannot be read."""
    if (settings.corpus is None) != (settings.questions is None):
        raise CommandError(
            "--corpus and --questions go together: a folder, and the questions asked of it"
        )
    if settings.corpus is None or settings.questions is None:
        return False
    read_own_questions(settings.questions)
    folder_sources(settings.corpus)
    return True


def _make_corpora(settings: BenchSettings, folder: Path, notes: Phases) -> Corpora:
    embedder = LazyEmbedder(embedding.load_embedder, embedding.MiniLM.name)
    model, form = prepare_model(settings.model, settings.backend, notes)

    def load(name: str) -> QuestionSet:
        if name == OWN and settings.corpus and settings.questions:
            sources = folder_sources(settings.corpus)
            index = load_corpus_index(settings.corpus, sources, embedder, notes)
            return own_set(settings.corpus.name, index, settings.questions, embedder)
        return load_set(name, embedder, settings.context_tokens)

    tokenize = _load_tokenizer(model, settings.backend)
    return Corpora(load, tokenize, form, model, settings.context_tokens, folder)


def _load_tokenizer(model: str, backend: str) -> Tokenize:
    if backend == "memory":
        return lambda texts: [[hash(word) for word in text.split()] for text in texts]
    with needed("the model's tokenizer"):
        from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(model)
    return lambda texts: [list(ids) for ids in tokenizer(list(texts))["input_ids"]]


def _sizes(settings: BenchSettings, corpora: Corpora) -> Sizes:
    return Sizes(
        model=corpora.model,
        backend=settings.backend,
        dtype=settings.dtype,
        device_bytes=settings.device_bytes,
        host_bytes=settings.host_bytes,
        context_tokens=settings.context_tokens,
        vllm_args=settings.vllm_args,
    )


def _summarize_traces(plan: Plan, corpora: Corpora, seed: int) -> list[TraceSummary]:
    """Describe the requests drawn from every trace. Reads all question sets before anything starts."""
    counts: dict[TraceSpec, int] = {}
    for group in plan.groups:
        for part in group.parts:
            counts[part.trace] = max(group.drawn(part), counts.get(part.trace, 0))
    return [corpora.summarize(trace, count, seed) for trace, count in counts.items()]


def _token_bytes(sizes: Sizes) -> int | None:
    if sizes.backend == "memory":
        return None
    folder = local_folder(sizes.model)
    return model_size(folder, sizes.dtype).kv_token_bytes if folder else None


def _shown_model(model: str) -> str:
    """Return a hub id, or only the last name of a folder, because results are shown to others."""
    return Path(model).name if Path(model).is_dir() else model


def _command(settings: BenchSettings) -> str:
    words = ["python", "benchmarks/compare.py"]
    if settings.plan != "usual":
        words.append(f"--{settings.plan}")
    if settings.corpus:
        words += ["--corpus", str(settings.corpus), "--questions", str(settings.questions)]
    if settings.systems:
        words += ["--systems", *settings.systems]
    if settings.model != DEMO_MODEL:
        words += ["--model", settings.model]
    mib = f"{settings.device_bytes >> 20}MiB", f"{settings.host_bytes >> 20}MiB"
    words += ["--device-cache", mib[0], "--host-cache", mib[1]]
    words += ["--context", str(settings.context_tokens), "--dtype", settings.dtype]
    for name, value in settings.vllm_args.items():
        words += ["--vllm-arg", f"{name}={value}"]
    return shlex.join([*words, "--seed", str(settings.seed)])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""
