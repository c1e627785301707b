"""A chat template for the engine without a model: each message between the tags of its role."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_engine.chat.messages import plain_text
from ragcache_engine.chat.tools import call_text

TAG = re.compile(r"\s*</?(system|user|assistant|tool|tools|tool_call)>\s*")
"""A line that comes from the template, not from a message."""


def write_conversation(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """Write the conversation as one text.

    messages: as `check_messages` returns them. tools: as in OpenAI's chat API.
    add_generation_prompt: end with the tag that begins the assistant's answer.
    continue_final_message: leave the last message without its closing tag.
    """
    parts = [_write_tools(tools)] if tools else []
    parts += [f"<{m['role']}>\n{_write_message(m)}\n</{m['role']}>\n" for m in messages]
    if continue_final_message:
        parts[-1] = f"<{messages[-1]['role']}>\n{_write_message(messages[-1])}"
    if add_generation_prompt:
        parts.append("<assistant>\n")
    return "".join(parts)


def _write_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"<tools>\n{lines}\n</tools>\n"


def _write_message(message: Mapping[str, Any]) -> str:
    calls = [call_text(call) for call in message.get("tool_calls") or ()]
    text = plain_text(message.get("content"))
    return "\n".join([*([text] if text else []), *calls])
