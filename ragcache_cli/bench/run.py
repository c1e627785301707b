"""`ragcache bench`: measure, and write a folder with raw figures, plots and a report."""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_cli import embedding
from ragcache_cli.bench import contextpilot
from ragcache_cli.bench.checks import group_checks, last_checks
from ragcache_cli.bench.corpora import About, Corpora, Tokens
from ragcache_cli.bench.drive import Seen, play_group
from ragcache_cli.bench.plan import LONG, PLANS, Plan, Trace
from ragcache_cli.bench.question_sets import (
    OnceNeeded,
    QuestionSet,
    data_folder,
    demo_set,
    long_documents,
    own_set,
    read_own_questions,
    shared_set,
)
from ragcache_cli.bench.report import Report
from ragcache_cli.bench.results import RAW, REPORT, holds_run, write
from ragcache_cli.bench.systems import Sizes, chosen_systems
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.files import folder_sources
from ragcache_cli.folders import cache_home
from ragcache_cli.index import up_to_date
from ragcache_cli.machine import Machine, installed_versions, this_machine
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.model_size import local_folder, model_size
from ragcache_cli.models import DEMO_MODEL
from ragcache_cli.python_topics import python_topics
from ragcache_cli.terminal import Phases

MAIN_SET, OWN, DEMO = "squad", "own", "demo"
LOG = "systems.log"
TOKENS_A_WORD = 1.6
"""More than English takes, so that an article of that many words fits its prompt."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """As given on the command line. systems: None for the plan's. out: None for the usual folder."""

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
    """benchmarks/results/<date>-<machine>, below the present folder; -2, -3, ... where there is a run."""
    kind = machine.gpus[0].name if machine.gpus else f"{machine.cores}-cores"
    name = "-".join([today.isoformat(), *kind.lower().split()])
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    folders = (Path("benchmarks") / "results" / one for one in names)
    return next(folder for folder in folders if not holds_run(folder))


def bench(settings: BenchSettings, console: Console) -> Path:
    """Measure what the plan says and write the results. Returns their folder.

    Raises RAGCacheError: for questions or documents that cannot be read before anything is started, and
    BenchFailed if a system does not come up or fails.
    """
    if settings.out and holds_run(settings.out):
        raise CommandError(
            f"{settings.out / RAW} is of a run already: choose another --output, or move that folder"
        )
    began_s, load = time.monotonic(), os.getloadavg()
    own = _own_questions(settings)
    notes = Phases(Console(stderr=True))
    machine = this_machine()
    out = settings.out or results_folder(machine, date.today())
    with tempfile.TemporaryDirectory(prefix="ragcache-bench-") as kept:
        corpora, main = _corpora(settings, own, Path(kept), notes)
        plan = PLANS[settings.plan](main, main == MAIN_SET)
        plan = only(plan, settings.systems)
        sizes = _sizes(settings, corpora)
        abouts = _abouts(plan, corpora, settings.seed)
        out.mkdir(parents=True, exist_ok=True)
        log = out / LOG
        log.unlink(missing_ok=True)

        def say(line: str) -> None:
            minutes = (time.monotonic() - began_s) / 60
            console.print(f"[dim]{minutes:5.1f} min[/dim] {escape(line)}", soft_wrap=True)

        report = Report(
            title=f"RAGCache against its baselines, {date.today().isoformat()} ({plan.name} run)",
            command=_command(settings),
            machine={**asdict(machine), "cpu": _cpu()},
            versions=installed_versions(contextpilot.PACKAGE),
            sizes=replace(sizes, model=_shown_model(sizes.model)),
            token_bytes=_token_bytes(sizes),
            seen=Seen(),
            abouts=abouts,
            left_out=left_out(plan),
            load_average=load,
        )
        before = signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # as Ctrl-C: see `finally`
        try:
            for group in plan.groups:
                play_group(
                    group, corpora.prepared, sizes, log, settings.seed, report.seen, say,
                    partial(group_checks, group, corpora, main, sizes, settings.seed, report, say),
                )  # fmt: skip
                report.seconds = time.monotonic() - began_s
                try:
                    write(out, report, plan)  # what breaks off an hour later loses nothing
                except Exception as error:  # nor does it end the measuring; the last one is raised
                    say(f"no report so far, only raw figures: {type(error).__name__}: {error}")
            last_checks(plan, corpora, main, sizes, log, settings.seed, report, say)
        finally:
            signal.signal(signal.SIGTERM, before)
            report.seconds = time.monotonic() - began_s
            write(out, report, plan)
    console.print(f"The report is {escape(str(out / REPORT))}", soft_wrap=True)
    return out


def only(plan: Plan, keys: Sequence[str] | None) -> Plan:
    """The plan with these systems alone; None: as it is. Raises CommandError for one there is not."""
    if keys is None:
        return plan
    chosen = {system.key for system in chosen_systems(keys)}
    groups = []
    for number, group in enumerate(plan.groups):
        # The first group measures what was asked for, whether or not the plan has it there.
        systems = chosen_systems(keys) if number == 0 else group.systems
        kept = tuple(system for system in systems if system.key in chosen)
        if number == 0 or len(kept) > 1:
            groups.append(replace(group, systems=kept, quality=0, overlap=0))
    return replace(plan, groups=tuple(groups), equality=0)


def left_out(plan: Plan) -> list[str]:
    """What a reader may miss, and how to have it."""
    lines = []
    if plan.name == "quick":
        lines += [
            "everything but one trace at two rates: `make bench` takes 45 to 80 minutes",
            "answers in float32, quality of answers, the search hidden by prefill",
        ]
    if plan.name != "full":
        lines.append(
            "the whole grid (four question sets, top-1 to 5, three skews, six rates, every system): "
            "`ragcache bench --full`, days on two cores"
        )
    if not contextpilot.is_installed():
        lines.append("ContextPilot: it is not installed here (`pip install contextpilot`)")
    lines += [
        "LMCache: docs/benchmarks.md says what stops it on a CPU",
        "a GPU: benchmarks/gpu has the same comparison for one",
    ]
    return lines


def _own_questions(settings: BenchSettings) -> bool:
    """Whether a user's own data is asked. Refuses, before any work, what cannot be read."""
    if (settings.corpus is None) != (settings.questions is None):
        raise CommandError(
            "--corpus and --questions go together: a folder, and the questions asked of it"
        )
    if settings.corpus is None or settings.questions is None:
        return False
    read_own_questions(settings.questions)
    folder_sources(settings.corpus)
    return True


def _corpora(
    settings: BenchSettings, own: bool, folder: Path, notes: Phases
) -> tuple[Corpora, str]:
    """The sets there are, and the name of the main one."""
    data = data_folder()
    embedder = OnceNeeded(embedding.load_embedder, embedding.MiniLM.name)
    model, form = prepare_model(settings.model, settings.backend, notes)

    def load(name: str) -> QuestionSet:
        if name == OWN and settings.corpus and settings.questions:
            index = load_corpus_index(
                settings.corpus, folder_sources(settings.corpus), embedder, notes
            )
            return own_set(settings.corpus.name, index, settings.questions, embedder)
        if name == DEMO:
            sources = python_topics()
            index = up_to_date(cache_home() / "python-topics", sources, embedder).index
            return demo_set(index, embedder)
        assert data is not None  # plans name shared sets only where they are
        if name == LONG:
            return long_documents(data, embedder, int(settings.context_tokens / TOKENS_A_WORD))
        return shared_set(name, data, embedder)

    main = OWN if own else MAIN_SET if data else DEMO
    tokens = _tokenizer(model, settings.backend)
    return Corpora(load, tokens, form, model, settings.context_tokens, folder), main


def _tokenizer(model: str, backend: str) -> Tokens:
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


def _abouts(plan: Plan, corpora: Corpora, seed: int) -> list[About]:
    """Of every trace, as long as it is drawn. Reads all there is to read before anything starts."""
    counts: dict[Trace, int] = {}
    for group in plan.groups:
        for part in group.parts:
            counts[part.trace] = max(group.drawn(part), counts.get(part.trace, 0))
    return [corpora.about(trace, count, seed) for trace, count in counts.items()]


def _token_bytes(sizes: Sizes) -> int | None:
    if sizes.backend == "memory":
        return None
    folder = local_folder(sizes.model)
    return model_size(folder).kv_token_bytes if folder else None


def _shown_model(model: str) -> str:
    """Results are shown around: of a folder only its name."""
    return Path(model).name if Path(model).is_dir() else model


def _command(settings: BenchSettings) -> str:
    words = ["ragcache", "bench"]
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
