"""Marks in messages tell up to where a prompt is to stay cached, and never reach the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import EngineConfig, InvalidArgument, RAGCacheEngine, cache_point
from ragcache_engine.chat.cache_points import MOST_POINTS

TEXTS = st.text(max_size=20)


@pytest.fixture(scope="module")
def engine() -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(EngineConfig(backend="memory")) as made:
        yield made


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


@given(before=TEXTS, behind=TEXTS, system=TEXTS)
def test_the_prompt_is_what_it_is_without_marks_and_is_cut_where_they_stood(
    engine: RAGCacheEngine, before: str, behind: str, system: str
) -> None:
    rules = {"role": "system", "content": f"Rules: {system}"}
    marked = engine.chat.prompt([rules, user(f"<{before}{cache_point(60)}{behind}>")])
    assert marked == engine.chat.prompt([rules, user(f"<{before}{behind}>")])
    [(characters, for_s)] = marked.cache_points
    assert for_s == 60
    assert marked[:characters].endswith(f"<{before}")
    assert marked[characters:].startswith(f"{behind}>")


def test_parts_of_a_message_may_hold_them(engine: RAGCacheEngine) -> None:
    parts = [{"type": "text", "text": f"One.{cache_point()}"}, {"type": "text", "text": "Two."}]
    prompt = engine.chat.prompt([user(parts)])
    [(characters, for_s)] = prompt.cache_points
    assert prompt[:characters].endswith("One.")
    assert for_s == 300


def test_the_last_ones_count(engine: RAGCacheEngine) -> None:
    prompt = engine.chat.prompt([user(f"{at}{cache_point(at + 1)}") for at in range(9)])
    assert [for_s for _, for_s in prompt.cache_points] == [6, 7, 8, 9]
    assert len(prompt.cache_points) == MOST_POINTS


def test_a_mark_of_another_process_is_text(engine: RAGCacheEngine) -> None:
    prompt = engine.chat.prompt([user("[cache point 0011223344556677:60] Why?")])
    assert prompt.cache_points == ()
    assert "[cache point 0011223344556677:60]" in prompt


@pytest.mark.parametrize("for_s", [0, -1, 0.5, float("nan"), float("inf"), 1e9, "60", None, True])
def test_what_is_no_time_is_refused(for_s: object) -> None:
    with pytest.raises(InvalidArgument, match="for_s"):
        cache_point(for_s)  # type: ignore[arg-type]
