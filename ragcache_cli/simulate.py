"""`ragcache simulate`: how much memory would pay, which policy, and would reordering documents help?

It replays a trace on the simulated device, where production's cache manager decides about blocks.
"""

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
from ragcache_engine.knowledge.oracle import oracle, reuse_anywhere
from ragcache_engine.knowledge.traces import Trace
from ragcache_engine.simulation.sizes import NOMINAL_TOKEN_BYTES, TierSizes
from ragcache_engine.simulation.trace_prompts import TracePrompts
from ragcache_engine.simulation.trace_replay import TraceReplay, endless_hit_rate, replay_trace

ORACLE = "oracle"
TIER_COLUMNS = ("device", "host", "disk")
ENOUGH = 0.95
"""Of the hits that endless memory would give: where more memory is hardly worth its price."""
GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """capacities: of the device, in tokens, or as shares of all document tokens as in "5%".

    kv_token_bytes: what a token's tensors take; None if no model was named.
    block_tokens: tokens in a block. host_cache, disk_cache: sizes in the words of a capacity; None
      for no such tier.
    """

    capacities: tuple[str, ...]
    policies: tuple[str, ...]
    orders: tuple[str, ...]
    system_tokens: int
    kv_token_bytes: int | None
    output: Path
    block_tokens: int = 16
    host_cache: str | None = None
    disk_cache: str | None = None

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise CommandError(f"--block-size takes 1 token or more, got {self.block_tokens}")
        if self.disk_cache is not None and self.host_cache is None:
            raise CommandError("--disk-cache needs --host-cache, through which its blocks travel")


@dataclass(frozen=True, slots=True)
class Row:
    """One replay. of_oracle: token hits as a share of the oracle's; None where there is none.

    tier_hit_rates: the token hit rate by tier; None without slower tiers, and for the oracle.
    too_long: requests whose prompt does not fit into the device's capacity.
    """

    capacity_tokens: int
    policy: str
    order: str
    document_hit_rate: float
    token_hit_rate: float
    saved_s: float
    saved_share: float
    of_oracle: float | None
    tier_hit_rates: dict[str, float] | None = None
    too_long: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """endless: token hit rate of each order if nothing was ever evicted.

    anywhere: token hit rate if a document could be reused at any position, nothing evicted.
    host_tokens, disk_tokens: of the slower tiers.
    """

    requests: int
    documents: int
    document_tokens: int
    rows: tuple[Row, ...]
    endless: dict[str, float]
    anywhere: float
    block_tokens: int = 1
    host_tokens: int = 0
    disk_tokens: int = 0


def simulate(
    trace: Trace, profile: CostProfile, settings: SimulateSettings, console: Console
) -> Findings:
    """Replay the trace in every setting; print a table and the answers, write JSON and a picture."""
    phases = Phases(console)
    document_tokens = sum(trace.tokens.values())
    capacities = [tokens_of(text, document_tokens, "--capacity") for text in settings.capacities]
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


def tokens_of(text: str, document_tokens: int, option: str = "--capacity") -> int:
    """Read "5%" as a share of the documents, "4000" as tokens. Raises CommandError with the option."""
    is_share = text.endswith("%")
    try:
        tokens = float(text[:-1]) / 100 * document_tokens if is_share else float(text)
    except ValueError:
        tokens = 0.0
    if is_share and tokens > 0:
        return max(1, round(tokens))  # a small share of a few short files
    if tokens < 1:
        raise CommandError(f"{option} takes tokens or a share such as 5%, got {text!r}")
    return round(tokens)


def run(
    trace: Trace,
    profile: CostProfile,
    settings: SimulateSettings,
    capacities: Sequence[int],
    done: Callable[[int, int], None],
) -> Findings:
    """Replay the trace in every setting. `done` is called with the count of replays so far and in all."""
    total = len(settings.orders) * (1 + len(capacities) * (1 + len(settings.policies)))
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        done(count, total)

    tiers = _SlowerTiers.of(settings, sum(trace.tokens.values()))
    prompts = TracePrompts(
        trace,
        system_tokens=settings.system_tokens,
        block_tokens=settings.block_tokens,
        has_disk=tiers.disk_tokens > 0,
    )
    rows: list[Row] = []
    endless: dict[str, float] = {}
    for order in settings.orders:
        endless[order] = endless_hit_rate(trace, prompts, settings.policies[0], order=order)
        step()
        for capacity in capacities:
            best = _oracle(trace, capacity + tiers.tokens, order, settings.system_tokens)
            step()
            if best is not None:
                rate = best / _prompt_tokens(trace, settings.system_tokens)
                rows.append(Row(capacity, ORACLE, order, 0.0, rate, 0.0, 0.0, 1.0))
            for policy in settings.policies:
                result = replay_trace(
                    trace,
                    prompts,
                    tiers.below(capacity, settings),
                    policy,
                    profile=profile,
                    order=order,
                )
                step()
                rows.append(_row(capacity, policy, order, result, best, tiers.tokens > 0))
    anywhere = reuse_anywhere(trace) + max(0, len(trace) - 1) * settings.system_tokens
    return Findings(
        len(trace),
        len(trace.tokens),
        sum(trace.tokens.values()),
        tuple(rows),
        endless,
        anywhere / _prompt_tokens(trace, settings.system_tokens),
        settings.block_tokens,
        tiers.host_tokens,
        tiers.disk_tokens,
    )


@dataclass(frozen=True, slots=True)
class _SlowerTiers:
    """What lies below the device."""

    host_tokens: int
    disk_tokens: int

    @classmethod
    def of(cls, settings: SimulateSettings, document_tokens: int) -> _SlowerTiers:
        def tokens(text: str | None, option: str) -> int:
            return 0 if text is None else tokens_of(text, document_tokens, option)

        return cls(
            tokens(settings.host_cache, "--host-cache"),
            tokens(settings.disk_cache, "--disk-cache"),
        )

    @property
    def tokens(self) -> int:
        return self.host_tokens + self.disk_tokens

    def below(self, capacity: int, settings: SimulateSettings) -> TierSizes:
        """All tiers, the device with this capacity, in whole blocks and with one at least."""

        def blocks(tokens: int) -> int:
            return max(1, tokens // settings.block_tokens) if tokens else 0

        return TierSizes(
            settings.block_tokens,
            blocks(capacity),
            blocks(self.host_tokens),
            blocks(self.disk_tokens),
            settings.kv_token_bytes or NOMINAL_TOKEN_BYTES,
        )


def _prompt_tokens(trace: Trace, system_tokens: int) -> int:
    documents = sum(sum(trace.tokens[name] for name in request) for request in trace.requests)
    return documents + len(trace) * system_tokens


def _row(
    capacity: int,
    policy: str,
    order: str,
    result: TraceReplay,
    best: int | None,
    has_slower_tiers: bool,
) -> Row:
    tokens = result.prompt_tokens
    return Row(
        capacity,
        policy,
        order,
        result.document_hit_rate,
        result.token_hit_rate,
        result.saved_s,
        result.saved_s / result.cold_s if result.cold_s else 0.0,
        result.cached.total / best if best else None,
        {tier: hits / tokens for tier, hits in asdict(result.cached).items()}
        if has_slower_tiers and tokens
        else None,
        result.too_long,
    )


def _oracle(trace: Trace, capacity: int, order: str, system_tokens: int) -> int | None:
    """The oracle's token hits. With order "cached" requests depend on the cache: there is none."""
    if order == "canonical":
        trace = Trace(tuple(tuple(sorted(r)) for r in trace.requests), trace.tokens)
    elif order != "retrieved":
        return None
    return oracle(trace, capacity, system_tokens=system_tokens).tokens


def table(found: Findings, settings: SimulateSettings) -> Table:
    has_tiers = found.host_tokens > 0
    made = Table(
        title=f"{found.requests:,} requests for {found.documents:,} documents "
        f"({found.document_tokens:,} tokens)",
        caption="documents: leading documents found cached, of those retrieved\n"
        "tokens: prompt tokens not computed again; saved: seconds of prefill, less those of loading\n"
        f"the engine caches whole blocks of {found.block_tokens} tokens; the oracle knows no blocks"
        + (", and has the room of all tiers" if has_tiers else ""),
    )
    names = ["capacity", "order", "policy", "documents", "tokens"]
    names += TIER_COLUMNS if has_tiers else ()
    names += ["of oracle", "saved"]
    for name in names:
        made.add_column(name, justify="left" if name in ("order", "policy") else "right")
    previous: tuple[int, str] | None = None
    for row in found.rows:
        group = (row.capacity_tokens, row.order)
        if previous not in (None, group):
            made.add_section()
        size = _size(row.capacity_tokens, settings.kv_token_bytes)
        heads = (size, row.order) if previous != group else ("", "")
        made.add_row(*heads, row.policy, *_cells(row, has_tiers))
        previous = group
    return made


def _cells(row: Row, has_tiers: bool) -> list[str]:
    """The row's figures, from its documents on."""
    rates = row.tier_hit_rates or {}
    tiers = [f"{rates[tier]:.1%}" if tier in rates else "" for tier in TIER_COLUMNS if has_tiers]
    if row.policy == ORACLE:
        return ["", f"{row.token_hit_rate:.1%}", *tiers, "", ""]
    return [
        f"{row.document_hit_rate:.1%}",
        f"{row.token_hit_rate:.1%}",
        *tiers,
        f"{row.of_oracle:.0%}" if row.of_oracle is not None else "",
        f"{row.saved_s:,.1f} s",
    ]


def answers(found: Findings, settings: SimulateSettings) -> list[str]:
    """What the user wanted to know, in sentences."""
    lines = [_memory(found, order, settings) for order in settings.orders]
    lines += _too_small(found, settings)
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


def _too_small(found: Findings, settings: SimulateSettings) -> list[str]:
    """A sentence on capacities that do not hold every single prompt."""
    short = {row.capacity_tokens: row.too_long for row in found.rows if row.too_long}
    if not short:
        return []
    largest = max(short)
    return [
        f"Prompts that do not fit on the device are computed without a cache here, and refused by an "
        f"engine: with {_size(largest, settings.kv_token_bytes)}, {short[largest]:,} of "
        f"{found.requests:,} requests."
    ]


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
