"""What the charts show. Plotly itself checks that each is a chart it can draw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ragcache_engine.dashboard import charts
from ragcache_engine.dashboard.history import Interval
from ragcache_engine.dashboard.observation import Observation, ObservedRequest, Phase
from ragcache_engine.observing.request_log import DocumentSource
from ragcache_engine.tiers.counters import BlocksByTier, TierCounters
from ragcache_engine.tiers.tree_snapshot import DocumentBlocks, TreeSnapshot
from ragcache_engine.values import CachedTokens

graph_objects = pytest.importorskip("plotly.graph_objects")

TREE = TreeSnapshot(
    documents=(
        DocumentBlocks(("tides",), 3, 9, BlocksByTier(device=6, disk=4)),
        DocumentBlocks(("<b>salt</b>",), 1, 2, BlocksByTier(host=5)),
    ),
    other_documents=7,
    other_blocks=BlocksByTier(disk=20),
    unnamed_blocks=BlocksByTier(device=2),
    held=BlocksByTier(8, 5, 24),
    capacity=BlocksByTier(10, 10, 100),
)
SEEN = Observation(0.0, TierCounters(), tree=TREE)
INTERVALS = [
    Interval(
        float(at),
        2.0,
        100,
        {"device": 0.5, "host": 0.1, "disk": 0.0},
        0.0,
        0.0,
        BlocksByTier(4, 0, 0),
    )
    for at in range(10)
]
REQUEST = ObservedRequest(
    "ragcache-17",
    1000.0,
    0.5,
    1.0,
    300,
    100,
    (
        Phase("search", 0.0, 0.3),
        Phase("guess", 0.1, 0.3),
        Phase("prefill", 0.3, 0.5),
        Phase("answer", 0.5, 1.0),
    ),
    (
        DocumentSource("tides", 100, CachedTokens(device=80, disk=20)),
        DocumentSource("salt", 200, CachedTokens(), "it was evicted"),
    ),
)


def traces(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trace.get("name", trace["type"]): trace for trace in figure["data"]}


@pytest.mark.parametrize(
    "figure",
    [
        charts.draw_tree(SEEN),
        charts.draw_tree(Observation(0.0, TierCounters())),
        charts.draw_ratios(INTERVALS),
        charts.draw_ratios([]),
        charts.draw_evictions(INTERVALS),
        charts.draw_evictions([]),
        charts.draw_timelines([REQUEST]),
        charts.draw_timelines([]),
        charts.draw_documents(REQUEST),
        charts.draw_documents(None),
        charts.draw_fill(SEEN),
        charts.draw_fill(Observation(0.0, TierCounters())),
    ],
)
def test_plotly_can_draw_it(figure: dict[str, Any]):
    graph_objects.Figure(figure)


def test_an_area_is_as_large_as_the_documents_blocks_in_the_tier():
    (tree,) = charts.draw_tree(SEEN)["data"]
    areas = dict(zip(tree["ids"], tree["values"], strict=True))
    assert areas["device/tides"] == 6
    assert areas["disk/tides"] == 4
    assert areas["host/<b>salt</b>"] == 5
    assert areas["disk/\0rest"] == 20
    assert areas["device/\0unnamed"] == 2
    for tier in ("device", "host", "disk"):
        inside = zip(tree["parents"], tree["values"], strict=True)
        assert areas[tier] == sum(value for parent, value in inside if parent == tier)


def test_names_of_documents_cannot_become_markup():
    (tree,) = charts.draw_tree(SEEN)["data"]
    assert "&lt;b&gt;salt&lt;/b&gt;" in tree["labels"]
    assert not any("<b>salt" in text for text in tree["hovertext"])


def test_texts_are_shown_only_where_they_are_given():
    (plain,) = charts.draw_tree(SEEN)["data"]
    assert not any("moon" in text for text in plain["hovertext"])
    shown = Observation(0.0, TierCounters(), tree=TREE, texts={"tides": "They follow the moon."})
    (texts,) = charts.draw_tree(shown)["data"]
    assert any("moon" in text for text in texts["hovertext"])


def test_exact_hits_are_stacked_and_approximate_ones_stand_apart():
    drawn = traces(charts.draw_ratios(INTERVALS))
    assert drawn["device"]["stackgroup"] == drawn["disk"]["stackgroup"]
    assert drawn["device"]["y"] == pytest.approx([0.5, 0.5])
    assert "stackgroup" not in drawn["borrowed (approximate)"]
    assert drawn["borrowed (approximate)"]["y"] == [0.0, 0.0]


def test_evictions_are_a_rate():
    assert traces(charts.draw_evictions(INTERVALS))["device"]["y"] == [2.0, 2.0]


def test_each_phase_of_a_request_is_a_bar_where_it_happened():
    drawn = traces(charts.draw_timelines([REQUEST]))
    assert (drawn["guess"]["base"], drawn["guess"]["x"]) == ([0.1], pytest.approx([0.2]))
    assert drawn["first token"]["x"] == [0.5]
    lanes = {drawn[kind]["offset"] for kind in ("search", "guess", "prefill")}
    assert len(lanes) == 3, "what runs at the same time must not cover one another"


def test_a_document_has_a_bar_with_its_sources_and_the_reason():
    figure = charts.draw_documents(REQUEST)
    drawn = traces(figure)
    assert drawn["device"]["x"] == [80, 0]
    assert drawn["disk"]["x"] == [20, 0]
    assert drawn["computed"]["x"] == [0, 200]
    reasons = [note["text"] for note in figure["layout"]["annotations"]]
    assert reasons == ["200 computed:<br>it was evicted"]


def test_what_a_document_borrowed_is_drawn_apart_and_needs_no_reason():
    document = DocumentSource(
        "reefs", 100, CachedTokens(), borrowed=CachedTokens(host=74), recomputed=26
    )
    figure = charts.draw_documents(replace(REQUEST, documents=(document,)))
    drawn = {name: trace["x"] for name, trace in traces(figure).items()}
    assert drawn == {
        "device": [0],
        "host": [0],
        "disk": [0],
        "borrowed (approximate)": [74],
        "recomputed": [26],
        "computed": [0],
    }
    assert list(drawn)[-1] == "computed"
    assert figure["layout"]["annotations"] == []


def test_the_mean_of_intervals_weighs_by_tokens():
    def interval(tokens: int, ratio: float) -> Interval:
        ratios = {"device": ratio, "host": 0.0, "disk": 0.0}
        return Interval(1.0, 1.0, tokens, ratios if tokens else {}, 0.0, 0.0, BlocksByTier())

    (mean,) = charts.smooth([interval(100, 1.0), interval(300, 0.0), interval(0, 0.0)])
    assert mean.ratios["device"] == 0.25
    (idle,) = charts.smooth([interval(0, 0.0)])
    assert idle.ratios == {}


EVIL = '\x1b[2J\u202e<a href="//evil.example">see</a>'


def test_no_name_is_a_tag_or_turns_a_label_round():
    blocks = BlocksByTier(device=3)
    tree = TreeSnapshot(documents=(DocumentBlocks((EVIL,), 1, 1, blocks),), held=blocks)
    document = DocumentSource(EVIL, 50, CachedTokens(), EVIL)
    request = ObservedRequest(f"r{EVIL}", 0.0, 0.1, 0.2, 50, 0, (), (document,))
    seen = Observation(0.0, TierCounters(), tree=tree, requests=(request,), problem=EVIL)
    figures = [charts.draw_tree(seen), charts.draw_documents(request)]
    figures.append(charts.draw_timelines((request,)))
    shown = [str(label) for figure in figures for label in _labels(figure)]
    assert any("2J" in label for label in shown)
    for label in shown:
        assert "<a " not in label
        assert not {"\x1b", "\u202e"} & set(label)


def _labels(figure: charts.Figure) -> list[object]:
    """Return what a reader sees of a figure: all texts but Plotly's own keys."""
    trace = figure["data"][-1]
    texts = [*trace.get("labels", ()), *trace.get("hovertext", ()), *trace.get("y", ())]
    return [*texts, *(note["text"] for note in figure["layout"].get("annotations", ()))]
