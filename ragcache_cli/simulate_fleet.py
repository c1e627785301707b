"""`ragcache simulate --replicas`: tell what a routing is worth on a fleet, before there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.folders import OTHER_OUTPUT, make_folder, whole_file, write_whole
from ragcache_cli.simulate_replays import tokens_of
from ragcache_cli.simulate_report import size_text
from ragcache_cli.terminal import Phases
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.simulation.fleet import FleetReplay, FleetSizes, replay_fleet
from ragcache_engine.simulation.traces import Trace, draw_zipf

FLEET_CAPACITY = "10%"
"""What a replica holds if nobody says otherwise."""

LOST_SHARE = 0.1
"""How many of the replicas go in the second replay of each setting."""

SEED = 1


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The arguments of the command, as in SimulateSettings.

    requests: how many to draw for each replica, with Zipf weights; None: the log, as it is.
    load: the share of time that the fleet would be busy without a cache.
    store_tokens_per_s, answer_s: as in FleetSizes.
    """

    replicas: tuple[int, ...]
    routings: tuple[str, ...]
    capacities: tuple[str, ...]
    policy: str
    system_tokens: int
    kv_token_bytes: int | None
    output: Path
    block_tokens: int = 16
    requests: int | None = None
    load: float = 0.7
    store_tokens_per_s: float = 0.0
    answer_s: float = 0.0

    def __post_init__(self) -> None:
        if self.load <= 0:
            raise CommandError("--load is above 0: a fleet without requests says nothing")
        if self.answer_s < 0:
            raise CommandError(
                "--answer is how many seconds an answer takes behind its first token, 0 or more"
            )
        if self.store_tokens_per_s < 0:
            raise CommandError("--store is how many tokens a second a store brings, above 0")


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One setting. lost: the same replay while LOST_SHARE of the replicas go; None for one replica.

    lost_hits: prompt tokens, as a share, that the loss made the fleet compute again.
    """

    replicas: int
    routing: str
    capacity_tokens: int
    whole: FleetReplay
    lost: FleetReplay | None

    @property
    def lost_hits(self) -> float | None:
        return self.whole.late_hit_rate - self.lost.late_hit_rate if self.lost else None


def simulate_fleet(
    trace: Trace, profile: CostProfile, settings: FleetSettings, console: Console
) -> list[FleetRow]:
    """Replay the trace on every fleet; print a table, write JSON and a picture."""
    document_tokens = sum(trace.tokens.values())
    capacities = [tokens_of(text, document_tokens) for text in settings.capacities]
    make_folder(settings.output, OTHER_OUTPUT)
    rows: list[FleetRow] = []
    total = len(settings.replicas) * len(capacities) * len(settings.routings)
    with Phases(console).waiting("Replaying on fleets") as done:
        for replicas in settings.replicas:
            asked = trace
            if settings.requests:
                asked = draw_zipf(trace, settings.requests * replicas, SEED)
            for capacity in capacities:
                for routing in settings.routings:
                    rows.append(_row(asked, profile, settings, replicas, capacity, routing))
                    done(len(rows), total)
    console.print(fleet_table(rows, settings))
    figures, picture = settings.output / "fleet.json", settings.output / "fleet.png"
    write_whole(figures, json.dumps([asdict(row) for row in rows], indent=1) + "\n", OTHER_OUTPUT)
    with whole_file(picture, OTHER_OUTPUT) as beside:
        draw_fleets(rows, beside)
    console.print(f"Written: {picture}, {figures}", highlight=False, soft_wrap=True)
    return rows


def _row(
    trace: Trace,
    profile: CostProfile,
    settings: FleetSettings,
    replicas: int,
    capacity: int,
    routing: str,
) -> FleetRow:
    def replay(lost_share: float) -> FleetReplay:
        sizes = FleetSizes(
            replicas,
            capacity,
            settings.block_tokens,
            settings.system_tokens,
            settings.load,
            lost_share,
            settings.store_tokens_per_s,
            settings.answer_s,
        )
        return replay_fleet(
            trace, sizes, routing, policy=settings.policy, profile=profile, seed=SEED
        )

    lost = replay(LOST_SHARE) if replicas > 1 else None
    return FleetRow(replicas, routing, capacity, replay(0.0), lost)


def fleet_table(rows: Sequence[FleetRow], settings: FleetSettings) -> Table:
    """Show the rows."""
    made = Table(
        title=f"{settings.policy}, a fleet as busy as {settings.load:.0%} without a cache",
        box=SIMPLE_HEAD,  # with borders, ten columns are wider than a terminal
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="hits: prompt tokens found cached\n"
        "busiest, work: requests and work of the busiest replica, over the mean\n"
        "TTFT: ms from arrival to first token, queue and prefill; p99: its 99th percentile\n"
        f"lost: hits fewer in the last third if {LOST_SHARE:.0%} of the replicas, one at least, go"
        + (
            "\nfetched: prompt tokens from the store, besides"
            if settings.store_tokens_per_s
            else ""
        ),
    )
    for name in ("replicas", "each holds", "routing", "hits", "busiest", "work"):
        made.add_column(name, justify="left" if name == "routing" else "right")
    for name in ("TTFT", "p99", "lost"):
        made.add_column(name, justify="right")
    if settings.store_tokens_per_s:
        made.add_column("fetched", justify="right")
    previous: tuple[int, int] | None = None
    for row in rows:
        group = (row.replicas, row.capacity_tokens)
        if previous not in (None, group):
            made.add_section()
        size = size_text(row.capacity_tokens, settings.kv_token_bytes)
        heads = (f"{row.replicas:,}", size) if previous != group else ("", "")
        whole = row.whole
        made.add_row(
            *heads,
            row.routing,
            f"{whole.hit_rate:.1%}",
            f"{whole.imbalance:.2f}",
            f"{whole.work_imbalance:.2f}",
            f"{whole.ttft_s * 1000:,.0f}",
            f"{whole.p99_ttft_s * 1000:,.0f}",
            f"{row.lost_hits:.1%}" if row.lost_hits is not None else "",
            *([f"{whole.fetched_rate:.1%}"] if settings.store_tokens_per_s else []),
        )
        previous = group
    return made


def draw_fleets(rows: Sequence[FleetRow], path: Path) -> None:
    """Draw hits, imbalance and lost hits against the number of replicas. Raises MissingExtra."""
    with needed("the picture"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    smallest = min(row.capacity_tokens for row in rows)
    for routing in dict.fromkeys(row.routing for row in rows):
        of = [row for row in rows if (row.routing, row.capacity_tokens) == (routing, smallest)]
        counts = [row.replicas for row in of]
        panels[0].plot(counts, [row.whole.hit_rate for row in of], marker="o", label=routing)
        panels[1].plot(counts, [row.whole.imbalance for row in of], marker="o", label=routing)
        gone = [(row.replicas, row.lost_hits) for row in of if row.lost_hits is not None]
        panels[2].plot(*zip(*gone, strict=True) if gone else ((), ()), marker="o", label=routing)
    titles = (
        "prompt tokens found cached",
        "requests of the busiest replica, over the mean",
        f"hits lost when {LOST_SHARE:.0%} of the replicas go",
    )
    for axes, title in zip(panels, titles, strict=True):
        axes.set_xscale("log")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("replicas")
        axes.grid(visible=True, color="#eeeeee")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[1].set_yscale("log")
    for axes in (panels[0], panels[2]):
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
