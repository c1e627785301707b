"""backends/vllm/request_bodies.py: which bodies vLLM's server would fail at, by vLLM's own reading."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from ragcache_engine import InvalidArgument

pytest.importorskip("vllm")

from ragcache_engine.backends.vllm.request_bodies import require_readable
from ragcache_engine.serving.openai_bodies import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
)

SOUND: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Why?"},
    CHAT: {"messages": [{"role": "user", "content": "Why?"}]},
    TOKENIZE: {"prompt": "Why?"},
    RESPONSES: {"input": "Why?"},
    MESSAGES: {
        "model": "any",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Why?"}],
    },
    DETOKENIZE: {"tokens": [1, 2]},
}


def require(path: str, **fields: Any) -> None:
    require_readable(path, json.dumps({**SOUND[path], **fields}).encode())


@pytest.mark.parametrize("path", list(SOUND))
def test_a_sound_body_can_be_read(path: str):
    require(path)


@pytest.mark.parametrize("value", ["text", True, [1]], ids=["text", "true", "list"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_body_that_vllm_would_fail_at_is_refused_with_the_reason(path: str, value: Any):
    with pytest.raises(InvalidArgument, match=r"another type than /v1/.*has no attribute"):
        require(path, structured_outputs=value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [([], "has no content"), ([{"type": "refusal", "refusal": "No."}], "another type")],
    ids=["empty", "refusal"],
)
def test_an_earlier_answer_that_vllm_would_fail_at_is_refused(content: list[Any], reason: str):
    answer = {"type": "message", "id": "a", "role": "assistant", "status": "completed"}
    with pytest.raises(InvalidArgument, match=reason):
        require(RESPONSES, input=[{**answer, "content": content}])


def test_a_tools_output_in_parts_is_refused_as_vllm_would_fail_at_it():
    parts = [{"type": "input_text", "text": "Noon."}]
    output = {"type": "function_call_output", "call_id": "a", "status": "completed", "id": "b"}
    require(RESPONSES, input=[{**output, "output": parts}])
    # With this field vLLM reads the item as one of its own, whose parts are no plain objects.
    output |= {"created_by": None}
    require(RESPONSES, input=[{**output, "output": "Noon."}])
    with pytest.raises(InvalidArgument, match="as one text"):
        require(RESPONSES, input=[{**output, "output": parts}])


@pytest.mark.parametrize(
    "fields",
    [{"temperature": "hot"}, {"prompt": None}, {"stream_options": {}}],
    ids=["type", "none", "check"],
)
def test_what_vllm_refuses_by_itself_is_left_to_it(fields: dict[str, Any]):
    require(COMPLETIONS, **fields)


def test_vllm_still_keeps_where_system_messages_go_under_the_name_that_is_read():
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    made = inspect.getsource(AnthropicServingMessages.__init__)
    assert "self._merge_inline_system =" in made
