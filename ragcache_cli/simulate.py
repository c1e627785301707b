"""`ragcache simulate`: how much memory would pay, which policy, and would reordering documents help?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.model_size import local_folder, model_size
from ragcache_cli.models import DEMO_MODEL, demo_model_folder
from ragcache_cli.terminal import Phases
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.knowledge.eviction import POLICIES
from ragcache_engine.knowledge.oracle import oracle, reuse_anywhere
from ragcache_engine.knowledge.path_order import DOCUMENT_ORDERS
from ragcache_engine.knowledge.replay import Replay, replay
from ragcache_engine.knowledge.traces import Trace

ORACLE = "oracle"
ENOUGH = 0.95
"""Of the hits that endless memory would give: where more memory is hardly worth its price."""
GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """capacities: tokens, or shares of all document tokens as in "5%".

    kv_token_bytes: what a token's tensors take; None if no model was named.
    """

    capacities: tuple[str, ...]
    policies: tuple[str, ...]
    orders: tuple[str, ...]
    system_tokens: int
    kv_token_bytes: int | None
    output: Path


@dataclass(frozen=True, slots=True)
class Row:
    """One replay. of_oracle: token hits as a share of the oracle's; None where there is none."""

    capacity_tokens: int
    policy: str
    order: str
    document_hit_rate: float
    token_hit_rate: float
    saved_s: float
    saved_share: float
    of_oracle: float | None


@dataclass(frozen=True, slots=True)
class Findings:
    """endless: token hit rate of each order if nothing was ever evicted.

    anywhere: token hit rate if a document could be reused at any position, nothing evicted.
    """

    requests: int
    documents: int
    document_tokens: int
    rows: tuple[Row, ...]
    endless: dict[str, float]
    anywhere: float


def simulate(
    trace: Trace, profile: CostProfile, settings: SimulateSettings, console: Console
) -> Findings:
    """Replay the trace in every setting; print a table and the answers, write JSON and a picture."""
    phases = Phases(console)
    document_tokens = sum(trace.tokens.values())
    capacities = [tokens_of(text, document_tokens) for text in settings.capacities]
    with phases.waiting(f"Replaying {len(trace):,} requests") as done:
        found = run(trace, profile, settings, capacities, done)
    console.print(table(found, settings))
    for line in answers(found, settings):
        console.print(f"- {line}", highlight=False, soft_wrap=True)
    settings.output.mkdir(parents=True, exist_ok=True)
    figures, picture = settings.output / "simulate.json", settings.output / "simulate.png"
    figures.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    draw(found, picture)
    console.print(f"Written: {picture}, {figures}", highlight=False, soft_wrap=True)
    return found


def kv_bytes_of(model: str) -> int:
    """What a token's tensors take, from the model's config.json. Raises CommandError."""
    folder = demo_model_folder() if model == DEMO_MODEL else local_folder(model)
    try:
        size = model_size(folder).kv_token_bytes if folder else None
    except (OSError, ValueError) as error:
        raise CommandError(f"the model {model} cannot be read: {error}") from error
    if size is None:
        raise CommandError(f"{model} is not on this machine; leave --model out to count in tokens")
    return size


def cost_profile(path: Path | None) -> CostProfile:
    """The measured one, or the default formula. Raises CommandError."""
    if path is None:
        return CostProfile.default()
    try:
        return CostProfile.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be used: {error}") from error


def tokens_of(text: str, document_tokens: int) -> int:
    """ "5%" of the documents, or a number of tokens. Raises CommandError."""
    is_share = text.endswith("%")
    try:
        tokens = float(text[:-1]) / 100 * document_tokens if is_share else float(text)
    except ValueError:
        tokens = 0.0
    if is_share and tokens > 0:
        return max(1, round(tokens))  # a small share of a few short files
    if tokens < 1:
        raise CommandError(f"--capacity takes tokens or a share such as 5%, got {text!r}")
    return round(tokens)


def run(
    trace: Trace,
    profile: CostProfile,
    settings: SimulateSettings,
    capacities: Sequence[int],
    done: Callable[[int, int], None],
) -> Findings:
    """Decides nothing and prints nothing: every setting's figures."""
    total = len(settings.orders) * (1 + len(capacities) * (1 + len(settings.policies)))
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        done(count, total)

    def replayed(capacity: int, policy: str, order: str) -> Replay:
        result = replay(
            trace,
            capacity,
            POLICIES[policy],
            cost=profile.prefill_s,
            order=DOCUMENT_ORDERS[order],
            system_tokens=settings.system_tokens,
        )
        step()
        return result

    everything = sum(map(sum, ([trace.tokens[d] for d in request] for request in trace.requests)))
    prompts = everything + len(trace) * settings.system_tokens
    cold_s = sum(
        profile.prefill_s(0, settings.system_tokens + sum(trace.tokens[d] for d in request))
        for request in trace.requests
    )
    rows: list[Row] = []
    endless: dict[str, float] = {}
    for order in settings.orders:
        endless[order] = replayed(prompts, "lru", order).token_hit_rate
        for capacity in capacities:
            best = _oracle(trace, capacity, order, settings.system_tokens)
            step()
            if best is not None:
                rows.append(Row(capacity, ORACLE, order, 0.0, best / prompts, 0.0, 0.0, 1.0))
            for policy in settings.policies:
                result = replayed(capacity, policy, order)
                rows.append(
                    Row(
                        capacity,
                        policy,
                        order,
                        result.document_hit_rate,
                        result.token_hit_rate,
                        result.saved_s,
                        result.saved_s / cold_s if cold_s else 0.0,
                        result.cached_tokens / best if best else None,
                    )
                )
    anywhere = reuse_anywhere(trace) + max(0, len(trace) - 1) * settings.system_tokens
    return Findings(
        len(trace),
        len(trace.tokens),
        sum(trace.tokens.values()),
        tuple(rows),
        endless,
        anywhere / prompts,
    )


def _oracle(trace: Trace, capacity: int, order: str, system_tokens: int) -> int | None:
    """The oracle's token hits. With order "cached" requests depend on the cache: there is none."""
    if order == "canonical":
        trace = Trace(tuple(tuple(sorted(r)) for r in trace.requests), trace.tokens)
    elif order != "retrieved":
        return None
    return oracle(trace, capacity, system_tokens=system_tokens).tokens


def table(found: Findings, settings: SimulateSettings) -> Table:
    made = Table(
        title=f"{found.requests:,} requests for {found.documents:,} documents "
        f"({found.document_tokens:,} tokens)",
        caption="documents: leading documents found cached, of those retrieved\n"
        "tokens: prompt tokens not computed again; saved: seconds of prefill",
    )
    names = ["capacity", "order", "policy", "documents", "tokens", "of oracle", "saved"]
    for name in names:
        made.add_column(name, justify="left" if name in ("order", "policy") else "right")
    previous: tuple[int, str] | None = None
    for row in found.rows:
        group = (row.capacity_tokens, row.order)
        if previous not in (None, group):
            made.add_section()
        cells = (
            ["", f"{row.token_hit_rate:.1%}", "", ""]
            if row.policy == ORACLE
            else [
                f"{row.document_hit_rate:.1%}",
                f"{row.token_hit_rate:.1%}",
                f"{row.of_oracle:.0%}" if row.of_oracle is not None else "",
                f"{row.saved_s:,.1f} s",
            ]
        )
        size = _size(row.capacity_tokens, settings.kv_token_bytes)
        heads = (size, row.order) if previous != group else ("", "")
        made.add_row(*heads, row.policy, *cells)
        previous = group
    return made


def answers(found: Findings, settings: SimulateSettings) -> list[str]:
    """What the user wanted to know, in sentences."""
    lines = [_memory(found, order, settings) for order in settings.orders]
    plain = found.endless.get("retrieved")
    best = max(found.endless, key=lambda order: found.endless[order])
    if plain is not None and len(found.endless) > 1:
        gain = found.endless[best] - plain
        lines.append(
            f"Reordering documents ({best}) would raise the hits from {plain:.1%} to "
            f"{found.endless[best]:.1%} with endless memory; it changes the prompts."
            if gain > 0.005
            else "Reordering documents would not help: the hits stay the same."
        )
    lines.append(
        f"Reuse of a document at any position could reach {found.anywhere:.1%} at the very most."
    )
    return lines


def _memory(found: Findings, order: str, settings: SimulateSettings) -> str:
    most = found.endless[order]
    tried = [row for row in found.rows if row.order == order and row.policy != ORACLE]
    enough = [row for row in tried if row.token_hit_rate >= ENOUGH * most]
    if not enough:
        row = max(tried, key=lambda row: row.token_hit_rate)
        return (
            f"{order}: endless memory would give {most:.1%} of the tokens; the most tried here, "
            f"{_size(row.capacity_tokens, settings.kv_token_bytes)} with {row.policy}, gives "
            f"{row.token_hit_rate:.1%}. Try a larger --capacity."
        )
    row = min(enough, key=lambda row: (row.capacity_tokens, -row.token_hit_rate))
    return (
        f"{order}: {_size(row.capacity_tokens, settings.kv_token_bytes)} with {row.policy} gives "
        f"{row.token_hit_rate:.1%} of the tokens, of {most:.1%} with endless memory."
    )


def _size(tokens: int, kv_token_bytes: int | None) -> str:
    if kv_token_bytes is None:
        return f"{tokens:,} tokens"
    size = tokens * kv_token_bytes
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def draw(found: Findings, path: Path) -> None:
    """Token hits against capacity, a panel for each order, as a PNG. Raises MissingExtra."""
    with needed("the picture"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    orders = list(found.endless)
    figure = Figure(figsize=(1 + 4.5 * len(orders), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(orders), sharey=True, squeeze=False)[0]
    for axes, order in zip(panels, orders, strict=True):
        rows = [row for row in found.rows if row.order == order]
        for policy in dict.fromkeys(row.policy for row in rows):
            points = sorted(
                (row.capacity_tokens, row.token_hit_rate) for row in rows if row.policy == policy
            )
            style = {"color": "#888888", "linestyle": "--"} if policy == ORACLE else {"marker": "o"}
            axes.plot(*zip(*points, strict=True), label=policy, markersize=4, **style)
        axes.axhline(found.endless[order], color="#bbbbbb", linewidth=1)
        axes.annotate(
            "endless memory",
            (0.02, found.endless[order]),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            color="#777777",
            va="bottom",
        )
        axes.set_xscale("log")
        axes.set_title(f"documents in {order} order", fontsize=10)
        axes.set_xlabel("capacity in tokens")
        axes.grid(visible=True, color="#eeeeee")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("prompt tokens found cached")
    panels[0].set_ylim(bottom=0)
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)
