"""The page, made with Dash: figures on top, then charts, brought up to date at intervals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from ragcache_engine.dashboard import charts
from ragcache_engine.dashboard.history import Interval, prompt_tokens, tokens_by_source
from ragcache_engine.dashboard.observation import Observation, ObservedRequest
from ragcache_engine.dashboard.watcher import Watcher
from ragcache_engine.values import BORROWED
from ragcache_engine.visible import visible

CHARTS = ("tree", "ratios", "timelines", "documents", "evictions", "fill")
SILENT_LOOKS = 5
"""After so many looks without an answer, the page says since when there was none."""

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
    app.index_string = _index(every_s)
    app.layout = _layout(watcher.name, every_s)

    @app.callback(
        Output("status", "children"),
        Output("seen", "children"),
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
            str(seen.at),
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
    cached = tokens_by_source(counters)

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
    parts = [html.Dt(name), html.Dd(value, className="value"), html.Dd(note)]
    return html.Div(parts, className="card")


def _index(every_s: float) -> str:
    """Return the HTML around what Dash draws."""
    style, script = (
        files(__package__).joinpath(name).read_text() for name in ("page.css", "page.js")
    )
    after_s = SILENT_LOOKS * every_s
    return f"""<!DOCTYPE html>
<html lang="en">
<head>{{%metas%}}<title>{{%title%}}</title>{{%favicon%}}{{%css%}}<style>{style}</style></head>
<body>
<p id="silence" role="alert" data-after-s="{after_s}" hidden></p>
{{%app_entry%}}
<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
<script>{script}</script>
</body>
</html>"""


def _layout(name: str, every_s: float) -> Any:
    chooser = html.Div(
        [
            # Dash names the choice after the element of this id, and draws none for a single choice.
            html.Label("Request", id="request-value-count", htmlFor="request"),
            dcc.Dropdown(id="request", options=[], placeholder="the last one"),
        ],
        className="choice",
    )
    header = html.Header(
        [
            html.H1("RAGCache"),
            html.Span(name),
            html.Span(id="status"),
            html.Span(id="seen", hidden=True),
        ]
    )
    charts = [
        _row(
            _chart("tree", "The knowledge tree: documents by tier", 380, 3),
            _chart("ratios", "Reused: exact by tier, and borrowed", 380, 2),
        ),
        _row(
            _chart("timelines", "The last requests", 400, 1),
            _chart("documents", "Documents of a request", 400, 1, chooser),
        ),
        _row(
            _chart("evictions", "Evictions", 240, 1),
            _chart("fill", "How full the tiers are", 240, 1),
        ),
    ]
    return html.Div(
        [
            header,
            html.Main([html.Dl(id="figures", className="row"), *charts]),
            dcc.Interval(id="tick", interval=int(every_s * 1000)),
        ],
        id="page",
    )


def _row(*charts: Any) -> Any:
    return html.Div(charts, className="row")


def _chart(name: str, heading: str, height: int, share: int, beside: Any = None) -> Any:
    graph = dcc.Graph(
        id=name, figure={}, config=_CONFIG, style={"height": f"{height}px"}, responsive=True
    )
    head = html.Div([html.H2(heading, id=f"{name}-heading"), beside], className="head")
    labelled: Any = {"aria-labelledby": f"{name}-heading"}
    style = {"flex": f"{share} 1 460px"}
    return html.Section([head, graph], className="card", style=style, **labelled)
