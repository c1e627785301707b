"""Play every system of the bench at eight rates on a clock without noise.

    python benchmarks/virtual_clock.py                          # `make bench-virtual`: minutes
    python benchmarks/virtual_clock.py --requests 300 --scenes passages
    python benchmarks/virtual_clock.py --profile FILE           # on another machine's cost profile

vLLM's real scheduler, block pool and offload, and RAGCache's own decisions, run around a model that
computes nothing. Steps, copies and disk reads take the time that a machine's profile says: one measured,
and two simulated. The same command gives the same digits. Besides, the kept run of the real bench is
played again, to tell how far the two agree.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from programs import command_line
from rich.console import Console

KEPT_RUN = Path(__file__).parent / "results" / "2026-11-22-2-cores"
OUT = Path(__file__).parent / "results" / "virtual"
SCENES = ("passages", "articles", "7b", "70b")
CONTEXT_TOKENS, ENGINE_TOKENS = 2048, 8192
RUNS = "figures.json"
SETS = {"squad": ("squad", 2), "long": ("long", 1)}


@lru_cache
def open_trace(name: str, top_k: int, times: int) -> tuple[Any, str]:
    """Read a question set with the demo model's tokenizer; return it with the model's folder."""
    from transformers import AutoTokenizer
    from virtual.questions import Questions, read_questions

    from ragcache_cli.model_prompts import prepare_model
    from ragcache_cli.models import DEMO_MODEL
    from ragcache_cli.terminal import Phases

    model, form = prepare_model(DEMO_MODEL, "vllm", Phases(Console(file=sys.stderr)))
    questions = Questions(
        read_questions(name, top_k, CONTEXT_TOKENS),
        form,
        AutoTokenizer.from_pretrained(model),
        document_times=times,
        most_tokens=0 if times == 1 else ENGINE_TOKENS - 64,
    )
    return questions, model


def open_questions(scene: Any) -> tuple[Any, str]:
    """Return the questions of a scene; see sweep.OpenQuestions."""
    return open_trace(scene.trace, scene.top_k, scene.machine.document_times)


def choose_scenes(names: Sequence[str], machine: Any, requests: int, warm: int) -> list[Any]:
    """Return the scenes of these names. machine: the measured one."""
    from virtual.machines import simulated_machines
    from virtual.sweep import Scene

    seven, seventy = simulated_machines()
    known = {
        "passages": Scene(machine, "squad", 2, requests, warm),
        "articles": Scene(machine, "long", 1, requests, warm),
        "7b": Scene(seven, "squad", 2, requests, warm),
        "70b": Scene(seventy, "squad", 2, requests, warm),
    }
    return [known[name] for name in names]


def replay_kept_run(raw: Mapping[str, Any], machine: Any, console: Console) -> list[Any]:
    """Play the kept run again, system by system."""
    from virtual.agreement import replay_system, warm_questions
    from virtual.measured import COMPARED

    plays = raw["report"]["seen"]["plays"]
    warm = warm_questions(raw["report"], raw["plan"])
    model = open_trace("squad", 2, 1)[1]

    def questions(trace: str) -> Any:
        return open_trace(*SETS[trace.split(",")[0]], 1)[0]

    agreed: list[Any] = []
    for system in COMPARED:
        agreed += replay_system(system, plays, machine, questions, model, warm)
        console.print(f"kept run: {system} replayed")
    return agreed


def read_runs(path: Path, scenes: Sequence[Any]) -> list[Any]:
    """Return the runs of these scenes that an interrupted call has left."""
    from virtual.figures import Figures
    from virtual.sweep import SystemRun

    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    runs = [
        SystemRun(**{**row, "figures": tuple(Figures(**one) for one in row["figures"])})
        for row in rows
    ]
    wanted = {(scene.name, scene.requests, len(scene.rates)) for scene in scenes}
    return [run for run in runs if (run.scene, run.figures[0].requests, len(run.figures)) in wanted]


def write_json(path: Path, rows: Sequence[Any]) -> None:
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=2_000, help="counted at each rate")
    parser.add_argument("--warm", type=int, default=300)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=SCENES)
    parser.add_argument("--systems", nargs="+", help="keys; default: all")
    parser.add_argument("--rates", type=float, nargs="+", help="shares of the capacity")
    parser.add_argument("--profile", type=Path, help="a file of `ragcache profile`")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted call left")
    parser.add_argument("--no-agreement", action="store_true", help="do not replay the kept run")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    from virtual.machines import bench_machine
    from virtual.measured import fit_run
    from virtual.report import write_plot, write_report
    from virtual.sweep import run_scenes
    from virtual.systems import BY_KEY, SYSTEMS

    from ragcache_engine.knowledge import CostProfile

    console = Console(highlight=False)
    with gzip.open(KEPT_RUN / "raw.json.gz", "rt", encoding="utf-8") as text:
        raw = json.load(text)
    fit = fit_run(raw["report"]["seen"]["plays"])
    profile = fit.profile(f"{KEPT_RUN.name}, fitted")
    fitted = machine = bench_machine(profile, fit.outside_s)
    if arguments.profile:
        own = CostProfile.from_json(arguments.profile.read_text(encoding="utf-8"))
        machine = bench_machine(own, fit.outside_s)
    scenes = choose_scenes(arguments.scenes, machine, arguments.requests, arguments.warm)
    if arguments.rates:
        scenes = [replace(scene, rates=tuple(arguments.rates)) for scene in scenes]
    systems = [BY_KEY[key] for key in arguments.systems] if arguments.systems else SYSTEMS
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    runs = read_runs(out / RUNS, scenes) if arguments.resume else []
    done = {(run.scene, run.system) for run in runs}
    missing = [
        (scene, system)
        for scene in scenes
        for system in systems
        if (scene.name, system.key) not in done
    ]
    for run in run_scenes(missing, open_questions, arguments.jobs):
        runs.append(run)
        write_json(out / RUNS, [asdict(run) for run in runs])
        console.print(f"{run.scene}: {BY_KEY[run.system].name}")
    runs.sort(key=lambda run: (run.scene, list(BY_KEY).index(run.system)))
    agreed = [] if arguments.no_agreement else replay_kept_run(raw, fitted, console)
    command = " ".join(["python benchmarks/virtual_clock.py", *sys.argv[1:]])
    report = write_report(scenes, runs, agreed, fit, command)
    (out / "report.md").write_text(report, encoding="utf-8")
    write_plot(out / "ttft.png", scenes, runs)
    write_json(out / "agreement.json", [asdict(one) for one in agreed])
    console.print(f"Written: {out}/report.md, ttft.png, {RUNS}, agreement.json")


# The systems run in processes of their own, which import this file again.
if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
