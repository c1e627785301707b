"""What prefilling a corpus takes, told before it begins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ragcache_cli.disk_warming import WarmSettings, estimate_lines
from ragcache_cli.errors import CommandError
from ragcache_cli.warming_estimate import WarmingEstimate, estimate_warming
from ragcache_engine import Corpus, Document
from ragcache_engine.knowledge.cost import CostProfile

A, B, OUTSIDE = (
    Document(name, "word " * count) for name, count in (("a", 10), ("b", 20), ("c", 5))
)


def corpus(neighbours: dict[str, Document | None]) -> Corpus:
    def find(documents: Sequence[Document]) -> list[Document | None]:
        return [neighbours[document.id] for document in documents]

    return Corpus(1, find)


def estimate(neighbours: dict[str, Document | None] | None) -> WarmingEstimate:
    return estimate_warming(
        [A, B],
        lambda text: len(text.split()),
        CostProfile.default(),
        system_text="two words",
        corpus=corpus(neighbours) if neighbours else None,
    )


def test_alone_each_document_is_computed_once():
    assert estimate(None).tokens == 2 + 10 + 20


def test_behind_neighbours_each_is_computed_twice():
    found = estimate({"a": B, "b": A})
    assert found.tokens == 2 + 2 * (10 + 20)
    assert found.seconds > estimate(None).seconds


def test_a_neighbour_that_is_not_warmed_itself_is_computed_too():
    assert estimate({"a": OUTSIDE, "b": None}).tokens == 2 + 10 + 20 + 5 + 10


def test_cost_and_size_are_told_and_a_disk_that_is_too_small():
    lines = estimate_lines(WarmingEstimate(2, 2048, 7.2), 1024, 1 << 20, is_measured=True)
    assert "2 documents: at most 2,048 tokens to compute, 2 MiB on disk, about 7 s" in lines[0]
    assert "need not be computed again" in lines[0]
    assert "raise --disk-cache" in lines[1]
    (line,) = estimate_lines(WarmingEstimate(2, 2048, 7.2), None, 1, is_measured=False)
    assert "MiB" not in line
    assert "rough formula" in line


def test_exact_warming_needs_a_query_log(tmp_path):
    with pytest.raises(CommandError, match="--questions is missing"):
        WarmSettings(tmp_path, None, "m", "memory", "auto", 3, 10, {"reuse": "prefix"})
    WarmSettings(tmp_path, None, "m", "memory", "auto", 3, 10, {"reuse": "anywhere"})
