"""backends/vllm/tool_parsers.py: tools that vLLM takes for none are refused, by its own reading."""

from __future__ import annotations

from typing import Any

import pytest

from ragcache_engine import InvalidArgument

pytest.importorskip("vllm")

from vllm.tokenizers import get_tokenizer

from ragcache_engine.backends.vllm.tool_parsers import ParserReader

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"type": "NaNfunction"}, r"tools\.0.*type"),
        ({"defer_loading": "AAA"}, r"tools\.0.*defer_loading"),
        ({"function": {"name": "look", "parameters": [None]}}, r"tools\.0.*parameters"),
        ({"function": {"name": "look", "description": 0}}, r"tools\.0.*description"),
    ],
    ids=["type", "flag", "parameters", "description"],
)
def test_a_tool_that_vllm_refuses_is_refused_with_its_place(changes: dict[str, Any], where: str):
    with pytest.raises(InvalidArgument, match=where):
        ParserReader("hermes", None, [{**LOOK, **changes}])  # type: ignore[arg-type]


@pytest.mark.vllm
def test_an_answer_may_be_read_without_tools(demo_model: str):
    reader = ParserReader("hermes", get_tokenizer(demo_model), [])
    assert reader.whole("no call at all").text == "no call at all"
