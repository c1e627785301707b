"""`ragcache simulate`: tell how much memory would pay, with which policy and document order.

It replays a trace on the simulated device, with the same cache manager as in production.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from ragcache_cli.errors import CommandError
from ragcache_cli.folders import OTHER_OUTPUT, make_folder, whole_file, write_whole
from ragcache_cli.model_size import local_folder, model_size
from ragcache_cli.models import DEMO_MODEL, demo_model_folder
from ragcache_cli.simulate_borrowing import borrowing_answers, borrowing_table
from ragcache_cli.simulate_replays import Findings, SimulateSettings, run, tokens_of
from ragcache_cli.simulate_report import answers, draw, table
from ragcache_cli.terminal import Phases
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.simulation.traces import Trace

__all__ = ["SimulateSettings", "cost_profile", "kv_bytes_of", "simulate"]


def simulate(
    trace: Trace, profile: CostProfile, settings: SimulateSettings, console: Console
) -> Findings:
    """Replay the trace in every setting; print a table and the answers, write JSON and a picture."""
    phases = Phases(console)
    document_tokens = sum(trace.tokens.values())
    capacities = [tokens_of(text, document_tokens, "--capacity") for text in settings.capacities]
    make_folder(settings.output, OTHER_OUTPUT)
    with phases.waiting(f"Replaying {len(trace):,} requests") as done:
        found = run(trace, profile, settings, capacities, done)
    console.print(table(found, settings))
    if found.borrowing:
        console.print(borrowing_table(found, settings))
    for line in [*answers(found, settings), *borrowing_answers(found, settings)]:
        console.print(f"- {line}", highlight=False, soft_wrap=True)
    figures, picture = settings.output / "simulate.json", settings.output / "simulate.png"
    write_whole(figures, json.dumps(asdict(found), indent=1) + "\n", OTHER_OUTPUT)
    with whole_file(picture, OTHER_OUTPUT) as beside:
        draw(found, beside)
    console.print(f"Written: {picture}, {figures}", highlight=False, soft_wrap=True)
    return found


def kv_bytes_of(model: str) -> int:
    """Return the bytes of one token's tensors, from the model's config.json. Raises CommandError."""
    folder = demo_model_folder() if model == DEMO_MODEL else local_folder(model)
    try:
        size = model_size(folder).kv_token_bytes if folder else None
    except (OSError, ValueError) as error:
        raise CommandError(f"the model {model} cannot be read: {error}") from error
    if size is None:
        raise CommandError(f"{model} is not on this machine; leave --model out to count in tokens")
    return size


def cost_profile(path: Path | None) -> CostProfile:
    """Return the profile in this file, or without a file the default formula. Raises CommandError."""
    if path is None:
        return CostProfile.default()
    try:
        return CostProfile.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be used: {error}") from error
