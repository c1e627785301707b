"""The page, made with Dash: figures on top, then charts, brought up to date at intervals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from ragcache_engine.dashboard import charts
from ragcache_engine.dashboard.history import SOURCES, Interval, prompt_tokens
from ragcache_engine.dashboard.observation import Observation, ObservedRequest
from ragcache_engine.dashboard.watcher import Watcher
from ragcache_engine.values import BORROWED
from ragcache_engine.visible import visible

CHARTS = ("tree", "ratios", "timelines", "documents", "evictions", "fill")
_CARD = {"background": "white", "borderRadius": "8px", "border": "1px solid #e2e6ea"}
_HEADING = {"margin": "0", "padding": "10px 14px 0", "fontSize": "14px", "fontWeight": "600"}
_CONFIG: Any = {"displaylogo": False, "displayModeBar": False, "responsive": True}


def make_page(watcher: Watcher, every_s: float) -> Dash:
    """Make the page. It loads nothing from elsewhere."""
    app = Dash(
        "ragcache",
        title=f"RAGCache: {watcher.name}",
        update_title="",
        serve_locally=True,
        compress=False,
        # Dash would look into the working folder, and serve what lies there.
        include_assets_files=False,
        assets_folder=str(Path(__file__).parent / "assets"),
    )
    app.layout = _layout(watcher.name, every_s)

    @app.callback(
        Output("status", "children"),
        Output("figures", "children"),
        Output("request", "options"),
        *(Output(name, "figure") for name in CHARTS),
        Input("tick", "n_intervals"),
        Input("request", "value"),
    )
    def update(_: int | None, chosen: str | None) -> tuple[Any, ...]:
        seen, intervals = watcher.view()
        return (
            describe_status(seen),
            show_figures(seen, intervals),
            [charts.request_label(request) for request in reversed(seen.requests)],
            *draw_all(seen, intervals, chosen).values(),
        )

    @app.callback(
        Output("request", "value"),
        Input("timelines", "clickData"),
        State("request", "value"),
        prevent_initial_call=True,
    )
    def choose(clicked: dict[str, Any] | None, chosen: str | None) -> str | None:
        return str(clicked["points"][0]["y"]) if clicked else chosen

    return app


def draw_all(
    seen: Observation, intervals: Sequence[Interval], chosen: str | None
) -> dict[str, charts.Figure]:
    """Draw every chart, by name, in the order of CHARTS. chosen: the label of a request."""
    drawn = {
        "tree": charts.draw_tree(seen),
        "ratios": charts.draw_ratios(intervals),
        "timelines": charts.draw_timelines(seen.requests),
        "documents": charts.draw_documents(find_request(seen.requests, chosen)),
        "evictions": charts.draw_evictions(intervals),
        "fill": charts.draw_fill(seen),
    }
    return {name: drawn[name] for name in CHARTS}


def find_request(requests: Sequence[ObservedRequest], chosen: str | None) -> ObservedRequest | None:
    """Return the chosen request; else the last one that named documents, else the last one."""
    for request in reversed(requests):
        if charts.request_label(request) == chosen:
            return request
    named = (request for request in reversed(requests) if request.documents)
    return next(named, requests[-1] if requests else None)


def describe_status(seen: Observation) -> str:
    """Say when the page was brought up to date, and what is wrong."""
    when = time.strftime("%H:%M:%S", time.localtime(seen.at))
    return f"{when}   {visible(seen.problem)}" if seen.problem else when


def show_figures(seen: Observation, intervals: Sequence[Interval]) -> list[Any]:
    """Return the row of figures above the charts."""
    counters, total = seen.counters, prompt_tokens(seen.counters, seen.approximate_tokens)
    cached = {source: getattr(counters, f"{source}_tokens") for source in SOURCES}

    def share(tokens: int) -> str:
        return f"{tokens / total:.1%}" if total else "-"

    by_tier = "  ".join(f"{source} {share(tokens)}" for source, tokens in cached.items())
    evicted = sum(counters.evicted.values())
    lost = counters.damaged + counters.missing
    disk = f"{lost:,} blocks lost" if lost else "nothing lost"
    if seen.tree is not None:
        disk = f"{seen.tree.disk_reads} reads, {seen.tree.disk_writes} writes under way"
    return [
        _figure("exact hits", share(sum(cached.values())), by_tier),
        _figure(
            BORROWED,
            share(seen.approximate_tokens),
            f"{counters.recomputed_tokens:,} tokens recomputed",
        ),
        _figure("first token", _median_ttft(seen.requests), "median of the last requests"),
        _figure("running", _number(seen.running), f"{_number(seen.waiting)} waiting"),
        _figure("evicted", f"{evicted:,}", "blocks since the start"),
        _figure("disk", counters.disk.value, disk),
        _figure("finished", _number(seen.finished), f"{_number(seen.failed)} failed"),
    ]


def _median_ttft(requests: Sequence[ObservedRequest]) -> str:
    times = sorted(request.ttft_s for request in requests)
    return f"{times[len(times) // 2]:.2f} s" if times else "-"


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _figure(name: str, value: str, note: str) -> Any:
    return html.Div(
        [
            html.Div(name, style={"fontSize": "12px", "color": "#667"}),
            html.Div(value, style={"fontSize": "24px", "fontWeight": "600"}),
            html.Div(note, style={"fontSize": "12px", "color": "#667"}),
        ],
        style={**_CARD, "padding": "10px 14px", "flex": "1 1 130px"},
    )


def _layout(name: str, every_s: float) -> Any:
    chooser = dcc.Dropdown(
        id="request",
        options=[],
        placeholder="the last one",
        style={"width": "230px", "fontSize": "12px"},
    )
    return html.Div(
        [
            html.Div(
                [
                    html.Span("RAGCache", style={"fontSize": "20px", "fontWeight": "700"}),
                    html.Span(name, style={"marginLeft": "12px", "color": "#667"}),
                    html.Span(id="status", style={"float": "right", "color": "#667"}),
                ]
            ),
            html.Div(id="figures", style=_row()),
            html.Div(
                [
                    _chart("tree", "The knowledge tree: documents by tier", 380, 3),
                    _chart("ratios", "Reused: exact by tier, and borrowed", 380, 2),
                ],
                style=_row(),
            ),
            html.Div(
                [
                    _chart("timelines", "The last requests", 400, 1),
                    _chart("documents", "Documents of a request", 400, 1, chooser),
                ],
                style=_row(),
            ),
            html.Div(
                [
                    _chart("evictions", "Evictions", 240, 1),
                    _chart("fill", "How full the tiers are", 240, 1),
                ],
                style=_row(),
            ),
            dcc.Interval(id="tick", interval=int(every_s * 1000)),
        ],
        style={
            "fontFamily": "system-ui, sans-serif",
            "background": "#f4f6f8",
            "padding": "14px",
            "minHeight": "100vh",
            "boxSizing": "border-box",
            "color": "#223",
        },
    )


def _row() -> dict[str, str]:
    return {"display": "flex", "gap": "12px", "flexWrap": "wrap", "marginTop": "12px"}


def _chart(name: str, heading: str, height: int, share: int, beside: Any = None) -> Any:
    head = {"display": "flex", "justifyContent": "space-between", "paddingRight": "10px"}
    return html.Div(
        [
            html.Div([html.H2(heading, style=_HEADING), beside], style=head),
            dcc.Graph(
                id=name, figure={}, config=_CONFIG, style={"height": f"{height}px"}, responsive=True
            ),
        ],
        style={**_CARD, "flex": f"{share} 1 460px", "minWidth": "0"},
    )
