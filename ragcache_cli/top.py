"""Shows on the terminal what a server does, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from ragcache_engine.dashboard import (
    BORROWED,
    History,
    Interval,
    Observation,
    ObservedRequest,
    Observer,
    prompt_tokens,
    tokens_by_source,
)
from ragcache_engine.visible import LONGEST_SHOWN, visible

TIERS = ("device", "host", "disk")
COLOURS = {
    "device": "green",
    "host": "cyan",
    "disk": "blue",
    "store": "bright_blue",
    BORROWED: "magenta",
    "recomputed": "red",
    "computed": "yellow",
}
LISTED = 8
"""So many documents and requests are listed."""

RECENT_S = 60.0
"""Rates are means over so many seconds."""


def watch(
    observer: Observer,
    every_s: float,
    console: Console,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the figures until Ctrl-C."""
    history = History()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            seen = observer.observe(with_tree=True)
            if not _is_blank(seen):
                history.add(seen)
            live.update(render(observer.name, seen, history.intervals()), refresh=True)
            sleep(every_s)


def show_once(observer: Observer, console: Console) -> bool:
    """Print the figures once; return whether there were any."""
    seen = observer.observe(with_tree=True)
    console.print(render(observer.name, seen, None))
    return not _is_blank(seen)


def _is_blank(seen: Observation) -> bool:
    """Return whether the figures are no figures, because the server could not be read."""
    return bool(seen.problem) and not seen.counters.ended


def render(name: str, seen: Observation, intervals: tuple[Interval, ...] | None) -> RenderableType:
    """Return all tables. intervals: what was seen before; None to leave all rates out."""
    recent = None
    if intervals is not None:
        recent = [one for one in intervals if one.at > seen.at - RECENT_S]
    parts: list[RenderableType] = [
        f"[bold]RAGCache[/bold]  {_shown(name)}  {time.strftime('%H:%M:%S', time.localtime(seen.at))}"
    ]
    if seen.problem:
        parts.append(f"[yellow]{_shown(seen.problem)}[/yellow]")
    if _is_blank(seen):
        return Group(*parts)
    parts += [_requests_line(seen), _hit_ratio(seen), ""]
    parts += [_sources(seen, recent), "", _tiers(seen, recent)]
    if seen.tree is not None:
        parts += ["", _documents(seen)]
    if seen.requests:
        parts += ["", _requests(seen.requests[-LISTED:])]
    return Group(*parts)


def _shown(text: str) -> str:
    """Return what a server says, on one line and without a meaning for the terminal."""
    return escape(visible(text, most=LONGEST_SHOWN))


def _requests_line(seen: Observation) -> str:
    figures = (
        ("running", seen.running),
        ("waiting", seen.waiting),
        ("finished", seen.finished),
        ("failed", seen.failed),
        ("restarts", seen.restarts),
    )
    said = "   ".join(f"{name} {value:,}" for name, value in figures if value is not None)
    disk = (
        ""
        if seen.tree is None
        else f", {seen.tree.disk_reads} reads, {seen.tree.disk_writes} writes"
    )
    return f"{said}   disk {seen.counters.disk.value}{disk}"


def _hit_ratio(seen: Observation) -> str:
    total = prompt_tokens(seen.counters, seen.approximate_tokens)
    exact = sum(tokens_by_source(seen.counters).values())
    shares = {"exact": exact, BORROWED: seen.approximate_tokens}
    said = "   ".join(f"{name} {_share(tokens, total):.1%}" for name, tokens in shares.items())
    return f"hit ratio since the start   {said}"


def _share(tokens: float, total: float) -> float:
    return tokens / total if total else 0.0


def _sources(seen: Observation, recent: list[Interval] | None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("prompt tokens from")
    table.add_column("", width=24)
    rates = {} if recent is None else {f"last {RECENT_S:.0f} s": recent}
    for heading in ("of all", *rates, "tokens"):
        table.add_column(heading, justify="right")
    counters = seen.counters
    total = prompt_tokens(counters, seen.approximate_tokens)
    tokens = tokens_by_source(counters) | {
        BORROWED: seen.approximate_tokens,
        "recomputed": counters.recomputed_tokens,
        "computed": counters.computed_tokens - counters.recomputed_tokens,
    }
    for source, count in tokens.items():
        share = _share(count, total)
        bar = ProgressBar(1.0, share, 24, complete_style=COLOURS[source])
        lately = [_describe_lately(source, intervals) for intervals in rates.values()]
        table.add_row(source, bar, f"{share:.1%}", *lately, f"{count:,}")
    return table


def _describe_lately(source: str, intervals: list[Interval]) -> str:
    """Say what share of the prompt tokens a source gave in these intervals."""
    total = sum(one.prompt_tokens for one in intervals)
    hits = sum(_ratio(source, one) * one.prompt_tokens for one in intervals)
    return f"{hits / total:.1%}" if total else "-"


def _ratio(source: str, one: Interval) -> float:
    ratios = {**one.ratios, BORROWED: one.approximate_ratio, "recomputed": one.recomputed_ratio}
    return 1.0 - sum(ratios.values()) if source == "computed" else ratios.get(source, 0.0)


def _tiers(seen: Observation, recent: list[Interval] | None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("tier")
    table.add_column("", width=24)
    rates = {} if recent is None else {"evicted/s": recent}
    for heading in ("full", "blocks", "of", "evicted", *rates):
        table.add_column(heading, justify="right")
    for tier in TIERS:
        held, capacity = seen.counters.held[tier], seen.counters.capacity[tier]
        share = held / capacity if capacity else 0.0
        table.add_row(
            tier,
            ProgressBar(1.0, share, 24, complete_style=COLOURS[tier]),
            f"{share:.0%}" if capacity else "-",
            f"{held:,}",
            f"{capacity:,}",
            f"{seen.counters.evicted[tier]:,}",
            *(_describe_evictions(tier, intervals) for intervals in rates.values()),
        )
    return table


def _describe_evictions(tier: str, intervals: list[Interval]) -> str:
    seconds = sum(one.seconds for one in intervals)
    evicted = sum(one.evicted[tier] for one in intervals)
    return f"{evicted / seconds:.1f}" if seconds else "-"


def _documents(seen: Observation) -> Table:
    tree = seen.tree
    assert tree is not None
    table = Table(box=None, pad_edge=False)
    table.add_column("largest documents", overflow="ellipsis", no_wrap=True, max_width=44)
    for heading in ("uses", "contexts", *TIERS):
        table.add_column(heading, justify="right")
    for each in tree.documents[:LISTED]:
        blocks = [f"{each.blocks[tier]:,}" if each.blocks[tier] else "-" for tier in TIERS]
        name = _shown(" + ".join(each.documents))
        table.add_row(name, f"{each.uses:,}", f"{each.contexts:,}", *blocks)
    others = tree.other_documents + max(0, len(tree.documents) - LISTED)
    if others:
        table.add_row(f"[dim]and {others:,} more[/dim]")
    return table


def _requests(requests: tuple[ObservedRequest, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("last requests", no_wrap=True)
    for heading in ("tokens", "exact", "borrowed", "first token", "total"):
        table.add_column(heading, justify="right")
    table.add_column("documents computed, and why", overflow="ellipsis", no_wrap=True)
    for request in reversed(requests):
        computed = [
            f"{each.document_id} ({each.why})" if each.why else each.document_id
            for each in request.documents
            if (each.computed_tokens - each.recomputed) * 2 > each.tokens
        ]
        total = request.prompt_tokens
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(request.ended_at)),
            f"{request.prompt_tokens:,}",
            f"{_share(request.cached_tokens, total):.0%}",
            f"{_share(request.borrowed_tokens, total):.0%}",
            f"{request.ttft_s:.2f} s",
            f"{request.total_s:.2f} s",
            _shown(", ".join(computed)) or "-",
        )
    return table
