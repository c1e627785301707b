"""The charts of the page, as plain descriptions that Plotly draws. Pure functions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ragcache_engine.dashboard.history import SOURCES, STORE, Interval
from ragcache_engine.dashboard.observation import Observation, ObservedRequest
from ragcache_engine.observing.request_log import DocumentSource
from ragcache_engine.tiers.tree_snapshot import DocumentBlocks, TreeSnapshot
from ragcache_engine.values import BORROWED
from ragcache_engine.visible import visible

Figure = dict[str, Any]
CLEAR = "rgba(0,0,0,0)"

COLOURS = {
    "device": "#2f9e64",
    "host": "#3b82b8",
    "disk": "#7d6bb3",
    STORE: "#4a4580",
    BORROWED: "#c2568f",
    "recomputed": "#a8622b",
    "computed": "#e0a030",
    "search": "#8a94a3",
    "guess": "#2f9e64",
    "lost guess": "#c0504d",
    "wait": "#c9ced6",
    "prefill": "#e0a030",
    "answer": "#b9d3ea",
}
HOVERS = {tier: f"exact, from {tier}" for tier in SOURCES}
"""What a bar says of the tiers; all other sources go by their names."""

MOST_AREAS = 120
"""So many documents have an area of their own; the rest share one."""

LANES = {
    "search": 0.13,
    "wait": 0.13,
    "guess": -0.13,
    "lost guess": -0.13,
    "prefill": -0.39,
    "answer": -0.39,
}
"""Where each kind of phase lies in the row of a request, so that none covers another."""

LANE_WIDTH = 0.24
LISTED_REQUESTS = 10
LONGEST_NAME = 28


def draw_tree(seen: Observation) -> Figure:
    """Draw the documents as areas: as large as their blocks, grouped by tier, darker if used more."""
    tree = seen.tree
    if tree is None or not (tree.documents or any(tree.unnamed_blocks.values())):
        return _empty("nothing is cached yet" if tree else "the tree cannot be seen")
    ids, labels, parents, values, colours, hovers = [], [], [], [], [], []

    def add(key: str, label: str, parent: str, blocks: int, uses: float, hover: str) -> None:
        ids.append(key)
        labels.append(label)
        parents.append(parent)
        values.append(blocks)
        colours.append(uses)
        hovers.append(hover)

    for tier in SOURCES:
        areas = list(_areas(tree, tier, seen.texts))
        if not areas:
            continue
        full = f"{tree.held[tier]:,} of {tree.capacity[tier]:,} blocks"
        add(tier, f"<b>{tier}</b>", "\0all", sum(area[2] for area in areas), 0, full)
        for key, label, blocks, uses, hover in areas:
            add(f"{tier}/{key}", label, tier, blocks, uses, hover)
    # Without a root of its own, Plotly draws a dark one.
    total = sum(values[at] for at, parent in enumerate(parents) if parent == "\0all")
    add("\0all", "", "", total, 0, f"{total:,} blocks in all")
    most_uses = max(1.0, *colours)
    trace = {
        "type": "treemap",
        "ids": ids,
        "labels": labels,
        "parents": parents,
        "values": values,
        "branchvalues": "total",
        "hovertext": hovers,
        "hoverinfo": "text",
        "textinfo": "label",
        "tiling": {"pad": 2},
        "pathbar": {"visible": False},
        "root": {"color": CLEAR},
        "marker": {
            "colors": colours,
            "colorscale": [[0, "#eef3f8"], [0.15, "#bcd6e8"], [0.5, "#5b9bc8"], [1, "#174f7c"]],
            "cmin": 0,
            "cmax": most_uses,
            "colorbar": {"title": {"text": "uses"}, "thickness": 10, "len": 0.9},
            "line": {"width": 1},
        },
    }
    margin = {"l": 4, "r": 4, "t": 4, "b": 4}
    labels_fit = {"minsize": 10, "mode": "hide"}  # a label too long for its area is left out
    return {"data": [trace], "layout": _layout(margin=margin, uniformtext=labels_fit)}


def _areas(
    tree: TreeSnapshot, tier: str, texts: Mapping[str, str]
) -> Iterable[tuple[str, str, int, int, str]]:
    """Yield key, label, blocks, uses and hover text of each area within a tier."""
    here = [document for document in tree.documents if document.blocks[tier]]
    for document in here[:MOST_AREAS]:
        name = " + ".join(document.documents)
        yield (
            name,
            _html(shorten(name)),
            document.blocks[tier],
            document.uses,
            _hover(document, texts),
        )
    rest = sum(document.blocks[tier] for document in here[MOST_AREAS:]) + tree.other_blocks[tier]
    if rest:
        count = len(here[MOST_AREAS:]) + tree.other_documents
        yield "\0rest", f"{count:,} more", rest, 0, f"{count:,} more documents, {rest:,} blocks"
    if unnamed := tree.unnamed_blocks[tier]:
        said = f"system prompts, questions and other text without a document, {unnamed:,} blocks"
        yield "\0unnamed", "other text", unnamed, 0, said


def _hover(document: DocumentBlocks, texts: Mapping[str, str]) -> str:
    blocks = ", ".join(f"{count:,} {tier}" for tier, count in document.blocks.items() if count)
    lines = [
        f"<b>{_html(' + '.join(document.documents))}</b>",
        f"blocks: {blocks}",
        f"used {document.uses:,} times, cached in {document.contexts:,} contexts",
    ]
    lines += [_html(texts[name]) for name in document.documents if name in texts]
    return "<br>".join(lines)


def draw_ratios(intervals: Sequence[Interval]) -> Figure:
    """Draw the exact hit ratio by tier over time, and the share that was borrowed apart."""
    seen = [one for one in smooth(intervals) if one.ratios]
    if not seen:
        return _empty("no request has ended yet")
    when = [_clock(one.at) for one in seen]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "name": source,
            "x": when,
            "y": [one.ratios.get(source, 0.0) for one in seen],
            "stackgroup": "exact",
            "mode": "lines",
            "line": {"width": 1, "color": COLOURS[source]},
            "hovertemplate": "%{y:.1%}",
        }
        for source in _sources_of(seen)
    ]
    data.append(
        {
            "type": "scatter",
            "name": BORROWED,
            "x": when,
            "y": [one.approximate_ratio for one in seen],
            "mode": "lines",
            "line": {"width": 2, "dash": "dot", "color": COLOURS[BORROWED]},
            "hovertemplate": "%{y:.1%}",
        }
    )
    axis = {"range": [0, 1], "tickformat": ".0%"}
    return {"data": data, "layout": _layout(yaxis=axis, hovermode="x unified")}


def _sources_of(intervals: Iterable[Interval]) -> list[str]:
    """Return the exact sources of some intervals, in the order of their speed."""
    return [*SOURCES, *([STORE] if any(STORE in one.ratios for one in intervals) else [])]


def draw_evictions(intervals: Sequence[Interval]) -> Figure:
    """Draw the evicted blocks a second by tier over time."""
    seen = smooth(intervals)
    if not seen:
        return _empty("nothing was seen yet")
    data = [
        {
            "type": "scatter",
            "name": tier,
            "x": [_clock(one.at) for one in seen],
            "y": [one.evicted[tier] / one.seconds for one in seen],
            "mode": "lines",
            "line": {"width": 1.5, "color": COLOURS[tier]},
            "hovertemplate": "%{y:.1f}",
        }
        for tier in SOURCES
    ]
    axis = {"rangemode": "tozero", "title": {"text": "blocks a second"}}
    return {"data": data, "layout": _layout(yaxis=axis, hovermode="x unified")}


def smooth(intervals: Sequence[Interval], over: int = 5) -> list[Interval]:
    """Return means over groups of this many intervals, weighed by their prompt tokens."""
    groups = [intervals[at : at + over] for at in range(0, len(intervals), over)]
    return [_mean(group) for group in groups]


def _mean(group: Sequence[Interval]) -> Interval:
    tokens = sum(one.prompt_tokens for one in group)
    ratios = {}
    if tokens > 0:
        for source in _sources_of(group):
            hits = sum(one.ratios.get(source, 0.0) * one.prompt_tokens for one in group)
            ratios[source] = hits / tokens
    approximate = sum(one.approximate_ratio * one.prompt_tokens for one in group)
    recomputed = sum(one.recomputed_ratio * one.prompt_tokens for one in group)
    return Interval(
        group[-1].at,
        sum(one.seconds for one in group),
        tokens,
        ratios,
        approximate / tokens if tokens > 0 else 0.0,
        recomputed / tokens if tokens > 0 else 0.0,
        {tier: sum(one.evicted[tier] for one in group) for tier in SOURCES},
    )


def draw_timelines(requests: Sequence[ObservedRequest]) -> Figure:
    """Draw the last requests, the newest on top: a bar each for search, guess, prefill and answer."""
    shown = requests[-LISTED_REQUESTS:]
    if not shown:
        return _empty("no request can be seen yet")
    rows = [request_label(request) for request in shown]
    data: list[dict[str, Any]] = []
    for kind in LANES:
        bars = [
            (row, phase)
            for row, request in zip(rows, shown, strict=True)
            for phase in request.phases
            if phase.kind == kind and phase.end_s > phase.start_s
        ]
        if not bars:
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": kind,
                "y": [row for row, _ in bars],
                "x": [phase.end_s - phase.start_s for _, phase in bars],
                "base": [phase.start_s for _, phase in bars],
                "width": LANE_WIDTH,
                "offset": LANES[kind],
                "marker": {"color": COLOURS[kind]},
                "hovertext": [
                    f"{kind} {phase.start_s:.3f} to {phase.end_s:.3f} s {_html(phase.detail)}"
                    for _, phase in bars
                ],
                "hoverinfo": "text",
            }
        )
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "first token",
            "y": rows,
            "x": [request.ttft_s for request in shown],
            "marker": {
                "symbol": "diamond",
                "size": 8,
                "color": "#222222",
                "line": {"width": 1, "color": "white"},  # seen on a dark ground too
            },
            "cliponaxis": False,
            "hovertext": [f"first token after {request.ttft_s:.3f} s" for request in shown],
            "hoverinfo": "text",
        }
    )
    layout = _layout(
        barmode="overlay",
        margin={"l": 122, "r": 12, "t": 30, "b": 40},
        xaxis={"title": {"text": "seconds since the question"}, "rangemode": "tozero"},
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": rows},
    )
    return {"data": data, "layout": layout}


def request_label(request: ObservedRequest) -> str:
    """Return a name for a request that a reader tells from others: when it ended, and its id's end."""
    number = request.name.removeprefix("ragcache-")
    return f"{_time_of_day(request.ended_at)}  {visible(number[-6:])}"


def draw_documents(request: ObservedRequest | None) -> Figure:
    """Draw a bar for each document of a request: its tokens by where they came from, and why."""
    if request is None or not request.documents:
        return _empty("this request named no document" if request else "no request can be seen yet")
    documents = request.documents
    rows = [
        f"{at}. {_html(shorten(each.document_id))}" for at, each in enumerate(documents, start=1)
    ]
    tokens = {
        "device": [each.cached.device for each in documents],
        "host": [each.cached.host for each in documents],
        "disk": [each.cached.disk for each in documents],
        BORROWED: [each.borrowed.total for each in documents],
        "recomputed": [each.recomputed for each in documents],
        "computed": [each.computed_tokens - each.recomputed for each in documents],
    }
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": source,
            "y": rows,
            "x": counts,
            "marker": {"color": COLOURS[source]},
            "hovertemplate": f"%{{x:,}} tokens: {HOVERS.get(source, source)}<extra></extra>",
        }
        for source, counts in tokens.items()
    ]
    longest = max(each.tokens for each in documents)
    notes = [
        {
            "x": each.tokens,
            "y": row,
            "text": _why(each),
            "xanchor": "left",
            "xshift": 6,
            "showarrow": False,
            "align": "left",
            "font": {"size": 11, "color": "#555555"},
        }
        for row, each in zip(rows, documents, strict=True)
        if each.computed_tokens > each.recomputed
    ]
    layout = _layout(
        barmode="stack",
        margin={"l": 172, "r": 12, "t": 30, "b": 40},
        # Room on the right for the reasons.
        xaxis={"title": {"text": "tokens"}, "range": [0, longest * 2.2]},
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": rows[::-1]},
        annotations=notes,
    )
    return {"data": data, "layout": layout}


def _why(document: DocumentSource) -> str:
    """Say how many of a document's tokens were computed, and why."""
    computed = document.computed_tokens - document.recomputed
    return f"{computed:,} computed:<br>{_html(document.why or 'unknown why')}"


def draw_fill(seen: Observation) -> Figure:
    """Draw how full each tier is."""
    capacity, held, kept = seen.counters.capacity, seen.counters.held, seen.counters.kept
    if seen.tree is not None:
        capacity, held = seen.tree.capacity, seen.tree.held
    tiers = [tier for tier in SOURCES if capacity[tier]]
    if not tiers:
        return _empty("no tier was seen yet")
    shares = [held[tier] / capacity[tier] for tier in tiers]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": tiers,
        "x": shares,
        "marker": {"color": [COLOURS[tier] for tier in tiers]},
        "text": [_say_fill(held[tier], capacity[tier], kept[tier]) for tier in tiers],
        "textposition": ["inside" if share > 0.5 else "outside" for share in shares],
        "insidetextanchor": "middle",
        "hoverinfo": "text",
        "cliponaxis": False,
    }
    layout = _layout(
        showlegend=False,
        margin={"l": 60, "r": 20, "t": 8, "b": 30},
        xaxis={"range": [0, 1], "tickformat": ".0%"},
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": tiers[::-1]},
    )
    return {"data": [trace], "layout": layout}


def _say_fill(held: int, capacity: int, kept: int) -> str:
    return f"{held:,} of {capacity:,} blocks" + (f", {kept:,} kept" if kept else "")


def _html(text: str) -> str:
    """Return somebody's text as Plotly is to show it: its labels may hold tags."""
    return escape(visible(text))


def shorten(name: str) -> str:
    """Return a name that fits beside a chart."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _time_of_day(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _layout(**more: Any) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "autosize": True,
        "margin": {"l": 52, "r": 12, "t": 30, "b": 32},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#333333"},
        "paper_bgcolor": CLEAR,  # the page's own ground shows through, light or dark
        "plot_bgcolor": CLEAR,
        "hoverlabel": {"bgcolor": "white"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "uirevision": "kept",  # what the reader chose stays when figures change
    }
    return layout | more


def _empty(said: str) -> Figure:
    note = {
        "text": said,
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "font": {"size": 14, "color": "#888888"},
    }
    hidden = {"visible": False}
    return {"data": [], "layout": _layout(annotations=[note], xaxis=hidden, yaxis=hidden)}
