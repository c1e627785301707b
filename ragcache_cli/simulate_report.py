"""Shows the findings of `ragcache simulate`: a table, sentences and a picture."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from ragcache_cli.extras import needed
from ragcache_cli.simulate_replays import ORACLE, Findings, Row, SimulateSettings

TIERS = ("device", "host", "disk")
ENOUGH = 0.95
"""From this share of the hits with endless memory on, more memory is hardly worth its price."""
GIB, MIB = 1 << 30, 1 << 20


def table(found: Findings, settings: SimulateSettings) -> Table:
    has_tiers = found.host_tokens > 0
    made = Table(
        title=f"{found.requests:,} requests for {found.documents:,} documents "
        f"({found.document_tokens:,} tokens)",
        caption="documents: leading documents found cached, of those retrieved\n"
        "tokens: prompt tokens not computed again; saved: seconds of prefill, less those of loading\n"
        f"the engine caches whole blocks of {found.block_tokens} tokens; the oracle knows no blocks"
        + (
            ", and has the room of all tiers\nby tier: tokens from device + host + disk"
            if has_tiers
            else ""
        ),
    )
    names = ["capacity", "order", "policy", "documents", "tokens"]
    names += ["by tier"] if has_tiers else []
    names += ["of oracle", "saved"]
    for name in names:
        made.add_column(name, justify="left" if name in ("order", "policy") else "right")
    previous: tuple[int, str] | None = None
    for row in found.rows:
        group = (row.capacity_tokens, row.order)
        if previous not in (None, group):
            made.add_section()
        size = size_text(row.capacity_tokens, settings.kv_token_bytes)
        heads = (size, row.order) if previous != group else ("", "")
        made.add_row(*heads, row.policy, *_cells(row, has_tiers))
        previous = group
    return made


def _cells(row: Row, has_tiers: bool) -> list[str]:
    """Return the texts of a row's figures, from its document hits on."""
    rates = row.tier_hit_rates
    by_tier = " + ".join(f"{rates[tier]:.0%}" for tier in TIERS) if rates else ""
    tiers = [by_tier] if has_tiers else []
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
    """Answer in sentences how much memory pays, with which policy, and whether reordering helps."""
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
            f"{size_text(row.capacity_tokens, settings.kv_token_bytes)} with {row.policy}, gives "
            f"{row.token_hit_rate:.1%}. Try a larger --capacity."
        )
    row = min(enough, key=lambda row: (row.capacity_tokens, -row.token_hit_rate))
    return (
        f"{order}: {size_text(row.capacity_tokens, settings.kv_token_bytes)} with {row.policy} gives "
        f"{row.token_hit_rate:.1%} of the tokens, of {most:.1%} with endless memory."
    )


def _too_small(found: Findings, settings: SimulateSettings) -> list[str]:
    """Return a sentence on capacities that cannot hold every single prompt, if there are any."""
    short = {row.capacity_tokens: row.too_long for row in found.rows if row.too_long}
    if not short:
        return []
    largest = max(short)
    return [
        f"Prompts that do not fit on the device are computed without a cache here, and refused by an "
        f"engine: with {size_text(largest, settings.kv_token_bytes)}, {short[largest]:,} of "
        f"{found.requests:,} requests."
    ]


def size_text(tokens: int, kv_token_bytes: int | None) -> str:
    if kv_token_bytes is None:
        return f"{tokens:,} tokens"
    size = tokens * kv_token_bytes
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def draw(found: Findings, path: Path) -> None:
    """Draw token hits against capacity as a PNG, with a panel for each order. Raises MissingExtra."""
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
