"""The `ragcache` command: its arguments, and what its exit code says.

0: done. 1: it could not be done, and one line on standard error says why. 2: the arguments make no
sense. 130: interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_cli.folders import cache_home
from ragcache_cli.logging_setup import hush, stderr_into, wants_quiet
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME
from ragcache_cli.questions import QUESTIONS
from ragcache_engine import EngineError, RAGCacheError, __version__
from ragcache_engine.knowledge import DEFAULT_POLICY, DOCUMENT_ORDERS, POLICIES

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEMO_QUESTIONS = 16
"""As many as two cores answer three times within four minutes, preparations included."""
LOG = "last-run.log"
SHOWN_POLICIES = ("lru", "lfu", "pgdsf", DEFAULT_POLICY)
"""What `simulate` replays unless told otherwise."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. arguments: those of the process by default."""
    own, given = _at_double_dash(sys.argv[1:] if arguments is None else arguments)
    parsed = parser().parse_args(own)
    parsed.vllm_arguments = given
    quiet = wants_quiet()
    hush()
    errors = Console(stderr=True, highlight=False)
    log: Path | None = None
    try:
        with stderr_into(cache_home() / "logs" / LOG) if quiet else nullcontext() as log:
            code: int = parsed.run(parsed, Console(highlight=False))
    except RAGCacheError as error:
        errors.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        if log and isinstance(error, EngineError):
            errors.print(f"The model's processes wrote their log to {log}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough, as in `ragcache ask ... | head`.
        sys.stdout = None  # nothing left to flush into
        return 1
    return code


def _at_double_dash(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What `serve` reads itself, and what it hands on. Other commands know no double dash."""
    if "--" not in arguments or arguments[0] != "serve":
        return arguments, ()
    at = list(arguments).index("--")
    return arguments[:at], arguments[at + 1 :]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="ragcache", description="RAG answers sooner: documents are prefilled once."
    )
    made.add_argument("--version", action="version", version=f"ragcache {__version__}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(commands.add_parser("demo", help="compare RAGCache with stock vLLM on this machine"))
    _add_ask(commands.add_parser("ask", help="ask questions about a folder of your own files"))
    _add_profile(
        commands.add_parser("profile", help="measure how long prefill takes on this machine")
    )
    _add_simulate(
        commands.add_parser("simulate", help="tell how much memory and which policy would pay")
    )
    _add_warm(commands.add_parser("warm", help="prefill what a query log asks for, onto disk"))
    _add_bench(
        commands.add_parser("bench", help="measure RAGCache against vLLM's own caches, and report")
    )
    _add_serve(commands.add_parser("serve", help="start vLLM's OpenAI-compatible server with it"))
    _add_doctor(commands.add_parser("doctor", help="tell whether and how an engine would start"))
    return made


def _add_demo(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Ask questions about Python through a LangChain chain on stock vLLM, through the same "
        "chain on RAGCache and through LlamaIndex on RAGCache; compare times and answers."
    )
    command.add_argument(
        "--questions",
        type=_WholeNumber(len(QUESTIONS)),
        default=DEMO_QUESTIONS,
        metavar="N",
        help=f"ask the first N of {len(QUESTIONS)} (default: %(default)s)",
    )
    _add_model(command)
    _add_max_tokens(command, 48)
    command.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="FOLDER",
        help="where ttft.png and demo.json go (default: %(default)s)",
    )
    command.set_defaults(run=_run_demo)


def _add_ask(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Answer questions from the txt, md, rst, html and jsonl files of a folder. The index is "
        "kept in the folder, and only changed files are read again."
    )
    command.add_argument(
        "questions",
        nargs="*",
        metavar="QUESTION",
        help="none: read them from standard input, a line each",
    )
    command.add_argument("--corpus", type=Path, required=True, metavar="FOLDER")
    _add_model(command)
    command.add_argument(
        "--backend",
        choices=("auto", "vllm", "memory"),
        default="auto",
        help="memory: no model, made-up answers, for trying out a corpus (default: %(default)s)",
    )
    command.add_argument(
        "--top-k", type=int, default=3, metavar="K", help="passages a question (3)"
    )
    _add_max_tokens(command, 200)
    command.add_argument(
        "--timeline",
        nargs="?",
        type=_picture,
        const=True,
        metavar="FILE.png|FOLDER/",
        help="show what happened between question and first token; with a file or a folder, draw it too",
    )
    command.set_defaults(run=_run_ask)


def _add_profile(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Time the prefill of prompts of several lengths, with more and less of them cached. The "
        "result tells RAGCache what each document would cost to compute again."
    )
    _add_model(command)
    command.add_argument(
        "--backend",
        choices=("auto", "vllm", "memory"),
        default="auto",
        help="memory: the fake engine's own times, for tests (default: %(default)s)",
    )
    command.add_argument(
        "--repeats",
        type=_WholeNumber(None),
        default=3,
        metavar="N",
        help="timings of each pair of lengths, of which the median counts (default: %(default)s)",
    )
    command.add_argument(
        "--quick", action="store_true", help="fewer and shorter prompts: a rough profile"
    )
    command.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where the profile goes (default: in RAGCache's cache folder, named for the model)",
    )
    command.set_defaults(run=_run_profile)


def _add_simulate(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Replay retrievals through the knowledge tree, in several sizes, policies and document "
        "orders: how much memory is needed, and would reordering documents help? Takes a trace "
        '(a line a request: {"documents": ["d1", "d7"], "tokens": [120, 310]}), or a query log '
        "with the corpus it asks."
    )
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="a trace, JSON Lines")
    source.add_argument(
        "--questions", type=Path, metavar="FILE", help="a query log, a question a line"
    )
    command.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="what the questions are asked of, as in ask"
    )
    command.add_argument(
        "--top-k", type=_WholeNumber(None), metavar="K", help="only the first K documents (all; 3)"
    )
    command.add_argument(
        "--capacity",
        nargs="+",
        default=["1%", "2%", "5%", "10%", "20%", "50%", "100%"],
        metavar="SIZE",
        help="of device memory: tokens, or a share of all documents such as 5%% (default: 1%% to 100%%)",
    )
    for tier in ("host", "disk"):
        command.add_argument(
            f"--{tier}-cache", metavar="SIZE", help=f"of a {tier} tier below it, likewise (none)"
        )
    command.add_argument(
        "--block-size",
        type=_WholeNumber(None),
        default=16,
        metavar="N",
        help="tokens (%(default)s)",
    )
    command.add_argument("--policy", nargs="+", choices=sorted(POLICIES), metavar="NAME")
    command.add_argument(
        "--order",
        nargs="+",
        choices=sorted(DOCUMENT_ORDERS),
        default=["retrieved"],
        metavar="NAME",
        help="retrieved, canonical, cached (default: retrieved)",
    )
    command.add_argument(
        "--system-tokens",
        type=int,
        default=32,
        metavar="N",
        help="of the text before the documents (default: %(default)s)",
    )
    command.add_argument(
        "--model", metavar="ID_OR_FOLDER", help="show sizes in bytes of this model's tensors"
    )
    command.add_argument(
        "--profile", type=Path, metavar="FILE", help="costs as `ragcache profile` measured them"
    )
    command.add_argument("--output", type=Path, default=Path("simulate-output"), metavar="FOLDER")
    command.set_defaults(run=_run_simulate)


def _add_warm(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Search for each question of a query log, and prefill the sets of documents found most often "
        "into a disk cache. Engines with the same model and disk cache start with them."
    )
    command.add_argument("--corpus", type=Path, required=True, metavar="FOLDER")
    command.add_argument(
        "--questions", type=Path, required=True, metavar="FILE", help="a question a line"
    )
    command.add_argument("--disk-cache", default="10GiB", metavar="SIZE", help="(%(default)s)")
    command.add_argument("--disk-cache-dir", type=Path, metavar="FOLDER")
    command.add_argument(
        "--top", type=_WholeNumber(None), default=100, metavar="N", help="sets (100)"
    )
    command.add_argument("--top-k", type=_WholeNumber(None), default=3, metavar="K", help="(3)")
    _add_model(command)
    command.add_argument("--backend", choices=("auto", "vllm", "memory"), default="auto")
    command.set_defaults(run=_run_warm)


def _add_bench(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Put the same questions to vLLM without a cache, with its prefix cache, with its own host "
        "offload, and to RAGCache, whole and with parts changed; write raw figures, plots and report.md. "
        "Without --corpus the questions are those of the shared question sets ($RAGCACHE_DATA), or the "
        "demo's where there are none."
    )
    length = command.add_mutually_exclusive_group()
    length.add_argument(
        "--quick", dest="plan", action="store_const", const="quick", help="6 minutes on two cores"
    )
    length.add_argument(
        "--full", dest="plan", action="store_const", const="full", help="the whole grid, days"
    )
    command.add_argument("--corpus", type=Path, metavar="FOLDER", help="your own files, as in ask")
    command.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help='a question a line, or {"question": ..., "answer": ...}, asked of the corpus',
    )
    length.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="measure nothing: write report and plots of a run again from its raw figures",
    )
    _add_model(command)
    command.add_argument("--backend", choices=("vllm", "memory"), default="vllm")
    command.add_argument("--device-cache", default="96MiB", metavar="SIZE", help="(%(default)s)")
    command.add_argument("--host-cache", default="384MiB", metavar="SIZE", help="(%(default)s)")
    command.add_argument(
        "--context", type=_WholeNumber(None), default=2048, metavar="N", help="tokens (%(default)s)"
    )
    command.add_argument(
        "--systems", nargs="+", metavar="NAME", help="only these: off, on, lru, arc, ragcache, ..."
    )
    command.add_argument(
        "--vllm-arg",
        action="append",
        type=_named_value,
        default=[],
        metavar="NAME=VALUE",
        help="an argument of vLLM's for every system, such as load_format=dummy",
    )
    command.add_argument("--seed", type=_WholeNumber(None), default=1, metavar="N")
    command.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="(default: benchmarks/results/<date>-<machine>)",
    )
    command.set_defaults(run=_run_bench, plan="usual")


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Start vLLM's own OpenAI-compatible server with RAGCache's knowledge tree over its device "
        "memory, a host tier and a disk tier. Arguments behind -- go to `vllm serve` as they are: "
        "ragcache serve MODEL --disk-cache 20GiB -- --port 8001 --dtype float16"
    )
    command.add_argument("model", metavar="MODEL", nargs="?", default=DEMO_MODEL)
    command.add_argument("--host-cache", metavar="SIZE", help="such as 8GiB (see EngineConfig)")
    command.add_argument("--disk-cache", metavar="SIZE", help="such as 50GiB (default: none)")
    command.add_argument("--disk-cache-dir", type=Path, metavar="FOLDER")
    command.add_argument("--policy", choices=sorted(POLICIES), default=DEFAULT_POLICY)
    command.add_argument("--reorder-window", type=_WholeNumber(None), metavar="N")
    command.add_argument("--cache-depth", type=_WholeNumber(None), metavar="N")
    command.add_argument(
        "--show", action="store_true", help="print the command instead of running it"
    )
    command.set_defaults(run=_run_serve)


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.description = "Look at this machine, the packages and the model; start nothing."
    command.add_argument("--model", metavar="ID_OR_FOLDER", default=DEMO_MODEL)
    command.set_defaults(run=_run_doctor)


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model",
        default=DEMO_MODEL,
        metavar="ID_OR_FOLDER",
        help=f"a hub id or a model folder (default: {DEMO_MODEL_NAME}, no download)",
    )
    command.add_argument("--dtype", choices=DTYPES, default="auto", help="default: %(default)s")


def _add_max_tokens(command: argparse.ArgumentParser, default: int) -> None:
    command.add_argument(
        "--max-tokens",
        type=_WholeNumber(None),
        default=default,
        metavar="N",
        help=f"longest answer ({default})",
    )


class _WholeNumber:
    """A type for argparse: a whole number from 1, perhaps up to a most."""

    def __init__(self, most: int | None) -> None:
        self._most = most

    def __call__(self, text: str) -> int:
        number = int(text) if text.isdigit() else 0
        if number < 1 or (self._most is not None and number > self._most):
            to = f" to {self._most}" if self._most else ""
            raise argparse.ArgumentTypeError(f"a whole number from 1{to} is needed, got {text!r}")
        return number


def _named_value(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON if it is any, else as it is."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"NAME=VALUE is needed, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _picture(text: str) -> Path:
    if text.lower().endswith(".png") or text.endswith("/") or Path(text).is_dir():
        return Path(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a file ending in .png nor a folder; questions go before --timeline"
    )


# Commands are imported when they run, so that `ragcache --help` answers at once.


def _run_demo(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.demo import DemoSettings, demo

    demo(
        DemoSettings(
            parsed.model, parsed.dtype, parsed.questions, parsed.max_tokens, parsed.output
        ),
        console,
    )
    return 0


def _run_ask(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.ask import AskSettings, ask

    settings = AskSettings(
        questions=tuple(parsed.questions),
        corpus=parsed.corpus,
        model=parsed.model,
        backend=parsed.backend,
        dtype=parsed.dtype,
        top_k=parsed.top_k,
        max_tokens=parsed.max_tokens,
        timeline=parsed.timeline is not None,
        pictures=parsed.timeline if isinstance(parsed.timeline, Path) else None,
    )
    return 1 if ask(settings, console) else 0


def _run_profile(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.profile import ProfileSettings, profile

    profile(
        ProfileSettings(
            model=parsed.model,
            backend=parsed.backend,
            dtype=parsed.dtype,
            repeats=parsed.repeats,
            quick=parsed.quick,
            output=parsed.output,
        ),
        console,
    )
    return 0


def _run_simulate(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.simulate import SimulateSettings, cost_profile, kv_bytes_of, simulate
    from ragcache_cli.trace_files import trace_from

    settings = SimulateSettings(
        capacities=tuple(parsed.capacity),
        policies=tuple(parsed.policy or SHOWN_POLICIES),
        orders=tuple(parsed.order),
        system_tokens=max(0, parsed.system_tokens),
        kv_token_bytes=kv_bytes_of(parsed.model) if parsed.model else None,
        output=parsed.output,
        block_tokens=parsed.block_size,
        host_cache=parsed.host_cache,
        disk_cache=parsed.disk_cache,
    )
    profile = cost_profile(parsed.profile)
    trace = trace_from(parsed.trace, parsed.questions, parsed.corpus, parsed.top_k, console)
    simulate(trace, profile, settings, console)
    return 0


def _run_warm(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.warm import WarmSettings, warm

    engine = {"disk_cache": parsed.disk_cache}
    if parsed.disk_cache_dir:
        engine["disk_cache_dir"] = parsed.disk_cache_dir
    settings = WarmSettings(
        corpus=parsed.corpus,
        questions=parsed.questions,
        model=parsed.model,
        backend=parsed.backend,
        dtype=parsed.dtype,
        top_k=parsed.top_k,
        top=parsed.top,
        engine=engine,
    )
    warm(settings, console)
    return 0


def _run_bench(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.bench.results import rewrite
    from ragcache_cli.bench.run import BenchSettings, bench
    from ragcache_cli.bench.systems import size_bytes

    if parsed.report:
        console.print(f"The report is {escape(str(rewrite(parsed.report)))}", soft_wrap=True)
        return 0
    settings = BenchSettings(
        plan=parsed.plan,
        corpus=parsed.corpus,
        questions=parsed.questions,
        model=parsed.model,
        backend=parsed.backend,
        dtype=parsed.dtype,
        device_bytes=size_bytes(parsed.device_cache),
        host_bytes=size_bytes(parsed.host_cache),
        context_tokens=parsed.context,
        systems=tuple(parsed.systems) if parsed.systems else None,
        out=parsed.output,
        vllm_args=dict(parsed.vllm_arg),
        seed=parsed.seed,
    )
    bench(settings, console)
    return 0


def _run_serve(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.models import demo_model
    from ragcache_cli.serve import serve, serve_command

    wanted = (
        "host_cache",
        "disk_cache",
        "disk_cache_dir",
        "policy",
        "reorder_window",
        "cache_depth",
    )
    chosen = {name: getattr(parsed, name) for name in wanted}
    settings = {name: value for name, value in chosen.items() if value is not None}
    settings["model"] = str(demo_model()) if parsed.model == DEMO_MODEL else parsed.model
    if parsed.show:
        console.print(shlex.join(serve_command(settings, parsed.vllm_arguments)), soft_wrap=True)
    else:
        serve(settings, parsed.vllm_arguments)
    return 0


def _run_doctor(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.doctor import doctor

    return doctor(parsed.model, console)


if __name__ == "__main__":
    raise SystemExit(main())
