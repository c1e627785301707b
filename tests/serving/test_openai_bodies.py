"""Bodies of OpenAI's own requests: what of them reaches vLLM, and what is too much."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from ragcache_engine import BadRequest, PromptTooLong
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.serving.keys import ANYBODY, Caller
from ragcache_engine.serving.openai_bodies import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    TENANTS_FIELDS,
    rewrite_body,
)
from ragcache_engine.serving.room import Place, Room
from ragcache_engine.serving.routes import Served

SHOP, OPERATOR = Caller("shop"), Caller(is_operator=True)
PROMPT = "The moon pulls the oceans. " * 200
NAME, LONG_NAME = "d" * 512, "d" * 513


async def rewritten(
    said: Any, caller: Caller = SHOP, path: str = COMPLETIONS, **settings: Any
) -> dict[str, Any]:
    backend = MemoryBackend()

    served = Served(backend, await backend.start(), ("any",), **settings)
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    with ExitStack() as held:
        place = Place(Room(None), None)
        told = json.loads((await rewrite_body(path, body, caller, place, served, held)).body)
    assert isinstance(told, dict)
    return told


def ours(**said: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "kv_transfer_params": {"ragcache": said}}


@pytest.mark.parametrize("path", TENANTS_FIELDS)
async def test_of_a_tenants_body_only_what_every_tenant_may_say_reaches_vllm(path: str):
    known = {name: 1 for name in TENANTS_FIELDS[path] if name != "kv_transfer_params"}
    others = dict.fromkeys(
        ["priority", "ec_transfer_params", "vllm_xargs", "prompt_embeds", "chat_template",
         "request_id", "session_id", "mm_processor_kwargs", "use_beam_search", "of_a_newer_vllm"],
        1,
    )  # fmt: skip
    told = await rewritten({**known, **others}, SHOP, path)
    own: dict[str, Any] = {"cache_salt": "shop"} if "cache_salt" in known else {}
    if path == RESPONSES:
        own["store"] = False
    assert told == {**known, **own}
    assert await rewritten({**known, **others}, OPERATOR, path) == {**known, **others}


async def test_a_tenants_response_runs_none_of_the_servers_own_tools():
    tools = [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "x"}, "odd"]
    told = await rewritten({"input": "Why?", "tools": tools, "store": True}, SHOP, RESPONSES)
    assert told["tools"] == tools[:1]
    assert told["store"] is False


LONG = "word " * 100_000


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (RESPONSES, {"input": LONG}),
        (RESPONSES, {"input": "Why?", "instructions": LONG}),
        (RESPONSES, {"input": [{"role": "user", "content": LONG}]}),
        (RESPONSES, {"input": [{"content": [{"type": "input_text", "text": LONG}]}]}),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": LONG}]}),
        (MESSAGES, {"messages": [{"role": "user", "content": LONG}]}),
        (MESSAGES, {"messages": [], "system": [{"type": "text", "text": LONG}]}),
        (
            MESSAGES,
            {"messages": [{"content": [{"type": "tool_result", "content": LONG}]}]},
        ),
        (MESSAGES, {"messages": [{"content": [{"type": "tool_use", "input": {"text": LONG}}]}]}),
        (MESSAGES, {"messages": [{"content": [{"type": "thinking", "thinking": LONG}]}]}),
        (CHAT, {"messages": [], "tools": [{"function": {"name": "f", "description": LONG}}]}),
        (CHAT, {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": LONG}}]}]}),
        (RESPONSES, {"input": [{"type": "function_call", "name": "f", "arguments": LONG}]}),
        (COMPLETIONS, {"prompt": "Why?", "suffix": LONG}),
    ],
)
async def test_a_conversation_longer_than_the_context_is_refused_unread(path: str, said: Any):
    with pytest.raises(PromptTooLong):
        await rewritten(said, SHOP, path)


async def test_the_segments_of_a_tenant_reach_vllm():
    named = ours(segments=[[3, None], [8, "tides"]], forget=["tides"], snapshot=5)
    told = await rewritten(named)
    assert told["kv_transfer_params"] == {"ragcache": {"segments": [[3, None], [8, "tides"]]}}


@pytest.mark.parametrize("caller", [SHOP, OPERATOR])
async def test_where_borrowing_is_switched_off_a_completion_is_exact(caller: Caller):
    named = ours(segments=[[3, None], [8, "tides"]])
    told = await rewritten(named, caller, is_switched_off=lambda: True)
    assert told["kv_transfer_params"]["ragcache"]["exact"] is True
    told = await rewritten(named, caller)
    assert "exact" not in told["kv_transfer_params"]["ragcache"]


TOO_MUCH: dict[str, dict[str, Any]] = {
    "names on one token": ours(segments=[[31, f"{name:x}"] for name in range(40_000)]),
    "names": ours(segments=[[at, f"{at:x}"] for at in range(1001)]),
    "a long name": ours(segments=[[31, LONG_NAME]]),
    "documents": ours(documents=[[at, at + 1, "d"] for at in range(1001)]),
    "a document's long name": ours(documents=[[0, 9, LONG_NAME]]),
    "a long grammar": {"prompt": "x", "structured_outputs": {"grammar": "x" * 70_000}},
    "choices": {"prompt": "x", "structured_outputs": {"choice": ["x" * 5] * 20_000}},
    "a long schema": {
        "prompt": "x",
        "response_format": {"type": "json_schema", "json_schema": {"enum": ["x" * 70_000]}},
    },
}


@pytest.mark.parametrize("caller", [SHOP, OPERATOR, ANYBODY], ids=["tenant", "operator", "anybody"])
@pytest.mark.parametrize("said", TOO_MUCH.values(), ids=TOO_MUCH.keys())
async def test_more_than_a_server_takes_is_refused_in_few_words(
    said: dict[str, Any], caller: Caller
):
    with pytest.raises(BadRequest) as refused:
        await rewritten(said, caller)
    assert len(str(refused.value)) < 500


async def test_as_much_as_a_server_takes_passes():
    segments = [[at, f"{at:04}{NAME[4:]}"] for at in range(1000)]
    told = await rewritten(ours(segments=segments))
    assert told["kv_transfer_params"]["ragcache"]["segments"] == segments


@pytest.mark.parametrize("path", TENANTS_FIELDS)
async def test_a_body_is_not_deep(path: str):
    deep = b'{"tools": ' + b"[" * 300 + b"]" * 300 + b"}"
    with pytest.raises(BadRequest, match="JSON"):
        await rewritten(deep, OPERATOR, path)


@pytest.mark.parametrize("caller", [SHOP, ANYBODY])
async def test_no_variable_of_a_chat_template_is_the_template(caller: Caller):
    said = {"messages": [], "chat_template_kwargs": {"chat_template": "{{ 6 * 7 }}"}}
    with pytest.raises(BadRequest, match="chat_template"):
        await rewritten(said, caller, CHAT)
    said = {"messages": [], "chat_template_kwargs": {"enable_thinking": False}}
    assert (await rewritten(said, caller, CHAT))["chat_template_kwargs"] == {
        "enable_thinking": False
    }
