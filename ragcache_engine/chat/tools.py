"""Tell a model which tools it may call, and make it call one.

If a chat template has a place for tools, the template describes them. For any other template, the system
message describes them, and calls and their results are written as ordinary turns, in the form that many
models were trained on: JSON between <tool_call> tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_engine.chat.messages import plain_text
from ragcache_engine.checks import require_items
from ragcache_engine.errors import BadRequest, InvalidArgument, RefusedMessages
from ragcache_engine.guide import Guide, GuideKind
from ragcache_engine.visible import quoted

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_ANSWER = ".answer"
"""The name of an answer's form beside those of tools, which begin with no dot."""

_HOW = (
    "You may call these functions, described in JSON, one a line:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with nothing but its name and its arguments, in this form:\n"
    f'{OPEN}\n{{{{"name": "function name", "arguments": {{{{"argument": "value"}}}}}}}}\n{CLOSE}'
)


def check_tools(tools: Any) -> list[Mapping[str, Any]]:
    """Check that each tool is a mapping with a function's name. Raises InvalidArgument."""
    hint = 'such as [{"type": "function", "function": {...}}]'
    checked: list[Any] = list(require_items(tools, object, "tools", hint))
    for tool in checked:
        _function(tool)
    return checked


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the conversation with tools, calls and results in words, for a template without tools.

    messages: as `check_messages` returns them. If the first one is a system message, the description of
      the tools is added to its end; otherwise a system message with the description is put before it.
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
    """Return the message with its tool calls, or the result of a call, as ordinary text."""
    text = plain_text(message.get("content"))
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    calls = [call_text(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return dict(message)
    said = "\n".join([*([text] if text else []), *calls])
    return {"role": message["role"], "content": said}


def call_text(call: Mapping[str, Any]) -> str:
    """Return a call, given as in OpenAI's chat API, in the form that `CallReader` reads."""
    function = _function(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise RefusedMessages(
                f"the arguments of a call of {function['name']!r} are no JSON: {error}; leave that call "
                f"out of the conversation"
            ) from error
    written = {"name": function.get("name"), "arguments": arguments or {}}
    return f"{OPEN}\n{json.dumps(written, ensure_ascii=False)}\n{CLOSE}"


def call_guide(tools: Sequence[Mapping[str, Any]], name: str | None = None) -> Guide:
    """Return a guide for an answer that calls one of the tools, or the one with this name.

    The answer is JSON of the form {"name": ..., "arguments": {...}}. Every model keeps to this form,
    even if its chat template has no place for tools.
    tools: as in OpenAI's chat API.
    Raises BadRequest if there is no such tool.
    """
    functions = [_function(tool) for tool in tools]
    wanted = [function for function in functions if name in (None, function["name"])]
    if not wanted:
        names = ", ".join(quoted(function["name"]) for function in functions) or "none"
        raise BadRequest(f"there is no tool {name!r} to call; those given are: {names}")
    definitions: dict[str, Any] = {}
    forms = [_call_schema(function, definitions) for function in wanted]
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return Guide.json({**schema, "$defs": definitions} if definitions else schema)


def call_or_answer_guide(tools: Sequence[Mapping[str, Any]], answer: Guide) -> Guide:
    """Return a guide for an answer that calls one of the tools, or keeps to the guide that is given.

    A call has the form that `call_guide` gives it.
    Raises InvalidArgument unless the given guide is one to JSON.
    """
    if answer.kind is not GuideKind.JSON:
        raise InvalidArgument(
            f"a guide of kind {answer.kind.value} leaves no room for the calls of tools: give a guide to "
            f"JSON, or no tools"
        )
    calls = call_guide(tools).schema
    definitions: dict[str, Any] = calls.pop("$defs", {})
    form = _embed(answer.schema, _ANSWER, definitions)
    schema = {"anyOf": [form, *(calls.get("anyOf") or [calls])]}
    return Guide.json({**schema, "$defs": definitions} if definitions else schema)


def _call_schema(function: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    name = function["name"]
    arguments = function.get("parameters") or {"type": "object", "properties": {}}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": _embed(arguments, name, definitions)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _embed(schema: Mapping[str, Any], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema for use within another one, and put what it defines into that one's definitions.

    name: what the names of its definitions begin with there.
    """
    embedded, own = dict(schema), dict[str, Any]()
    for keyword in ("$defs", "definitions"):
        # References start at the root of a schema, and this one is no longer the root.
        for key, value in embedded.pop(keyword, {}).items():
            own[f"{name}.{key}"] = _move_references(value, name)
    moved: dict[str, Any] = _move_references(embedded, name)
    definitions |= own
    if _refers_to([moved, *own.values()], f"#/$defs/{name}"):
        definitions[name] = moved
        return {"$ref": f"#/$defs/{name}"}
    return moved


def _move_references(schema: Any, name: str) -> Any:
    """Return a schema with its references as they are where it is a part of another one.

    Those to definitions become #/$defs/<name>.<key>, those to other parts of it #/$defs/<name>/...
    """
    if isinstance(schema, list):
        return [_move_references(item, name) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _move_references(value, name) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        pointer = reference[1:]
        for keyword in ("/$defs/", "/definitions/"):
            if pointer.startswith(keyword):
                moved["$ref"] = f"#/$defs/{name}.{pointer.removeprefix(keyword)}"
                return moved
        moved["$ref"] = f"#/$defs/{name}{pointer}"
    return moved


def _refers_to(schema: Any, target: str) -> bool:
    """Return whether a schema refers to a target, or to a part of it."""
    if isinstance(schema, list):
        return any(_refers_to(item, target) for item in schema)
    if not isinstance(schema, Mapping):
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == target or reference.startswith(f"{target}/")):
        return True
    return any(_refers_to(value, target) for value in schema.values())


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the tools."""
    return frozenset(_function(tool)["name"] for tool in tools)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a tool or of a call that describes the function."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else tool
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidArgument(
            'a tool is a mapping such as {"type": "function", "function": {"name": ..., "parameters": '
            f"{{...}}}}}}, got {function!r}"
        )
    return function
