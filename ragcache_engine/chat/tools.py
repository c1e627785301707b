"""Tools a model may call: how they are told to it, how it is made to call one, how its calls are read.

Where a chat template has a place for tools, the template tells of them. For all others they are
described in the system message, and calls and their results are written as ordinary turns, in the form
that many models were trained on: JSON between <tool_call> tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_engine.chat.messages import plain_text
from ragcache_engine.errors import BadRequest
from ragcache_engine.guide import Guide

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_HOW = (
    "You may call these functions, described in JSON, one a line:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with nothing but its name and its arguments, in this form:\n"
    f'{OPEN}\n{{{{"name": "function name", "arguments": {{{{"argument": "value"}}}}}}}}\n{CLOSE}'
)


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation for a template that knows no tools: all that concerns them said in words.

    messages: checked. The description follows what the first system message says.
    """
    told = [_write_calls_in_words(message) for message in messages]
    if not tools:
        return told
    lines = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
    how = _HOW.format(tools=lines)
    if told[0]["role"] != "system":
        return [{"role": "system", "content": how}, *told]
    system = plain_text(told[0]["content"])
    return [{**told[0], "content": f"{system}\n\n{how}"}, *told[1:]]


def _write_calls_in_words(message: Mapping[str, Any]) -> dict[str, Any]:
    text = plain_text(message.get("content"))
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    calls = [call_text(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return dict(message)
    said = "\n".join([*([text] if text else []), *calls])
    return {"role": message["role"], "content": said}


def call_text(call: Mapping[str, Any]) -> str:
    """A call, as in OpenAI's chat API, in the form that `CallReader` reads."""
    function = _function(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    written = {"name": function.get("name"), "arguments": arguments or {}}
    return f"{OPEN}\n{json.dumps(written, ensure_ascii=False)}\n{CLOSE}"


def call_guide(tools: Sequence[Mapping[str, Any]], name: str | None = None) -> Guide:
    """The form of an answer that calls one of the tools, or the one of this name.

    It is JSON of the shape {"name": ..., "arguments": {...}}.

    tools: as in OpenAI's chat API. Any model keeps to it, whatever its chat template knows of tools.
    Raises BadRequest if there is no such tool.
    """
    functions = [_function(tool) for tool in tools]
    wanted = [function for function in functions if name in (None, function["name"])]
    if not wanted:
        names = ", ".join(function["name"] for function in functions) or "none"
        raise BadRequest(f"there is no tool {name!r} to call; those given are: {names}")
    definitions: dict[str, Any] = {}
    forms = [_call_schema(function, definitions) for function in wanted]
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return Guide.json({**schema, "$defs": definitions} if definitions else schema)


def _call_schema(function: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    name = function["name"]
    arguments = dict(function.get("parameters") or {"type": "object", "properties": {}})
    for keyword in ("$defs", "definitions"):
        # References count from the root of a schema, which these arguments no longer are.
        for key, value in arguments.pop(keyword, {}).items():
            definitions[f"{name}.{key}"] = _move_references(value, name)
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": _move_references(arguments, name)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _move_references(schema: Any, name: str) -> Any:
    if isinstance(schema, list):
        return [_move_references(item, name) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _move_references(value, name) for key, value in schema.items()}
    if isinstance(reference := moved.get("$ref"), str):
        for keyword in ("#/$defs/", "#/definitions/"):
            if reference.startswith(keyword):
                moved["$ref"] = f"#/$defs/{name}.{reference.removeprefix(keyword)}"
    return moved


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function
