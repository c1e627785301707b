"""How an answer's reuse is told in words."""

from __future__ import annotations

from ragcache_cli.reuse_lines import document_notes, exactness_line, usage_line
from ragcache_engine import CachedTokens, DocumentReuse, Usage

EXACT = Usage(300, 7, CachedTokens(device=64, host=32), 0.25, 1.5, why_exact="it was asked for")
BORROWED = Usage(
    300,
    7,
    CachedTokens(device=64),
    0.25,
    1.5,
    borrowed=CachedTokens(device=50),
    recomputed_tokens=20,
    reused=(
        DocumentReuse("a", 64, "device"),
        DocumentReuse("b", 60, "device", borrowed=50, recomputed=10),
        DocumentReuse("c", 50, None, borrowed=40, recomputed=10),
    ),
)


def test_what_nobody_knows_is_not_told_as_a_figure():
    unknown = Usage(300, 7, CachedTokens(), 0.25, 1.5, has_account=False)
    assert "0 cached" not in usage_line(unknown)
    assert "nobody knows" in usage_line(unknown)
    assert exactness_line(unknown).startswith("perhaps approximate")


def test_exact_and_borrowed_tokens_are_told_one_by_one():
    line = usage_line(BORROWED)
    assert "64 cached (64 from device), 50 borrowed (approximate) (50 from device)" in line
    assert "114" not in line  # their sum


def test_an_exact_answer_is_told_as_ever():
    assert "300 prompt tokens, 96 cached (64 from device, 32 from host), 7 in" in usage_line(EXACT)


def test_it_says_whether_an_answer_is_exact_and_why():
    assert exactness_line(EXACT) == "exact: it was asked for"
    told = exactness_line(BORROWED)
    assert told.startswith(
        "approximate: 90 tokens borrowed from other contexts, 50 of them cached; 20"
    )


def test_each_document_has_a_note():
    assert document_notes(BORROWED) == {
        "a": "exact, from device",
        "b": "50 tokens borrowed (from device), 10 recomputed",
        "c": "40 tokens borrowed (computed now), 10 recomputed",
    }
    assert document_notes(EXACT) == {}
