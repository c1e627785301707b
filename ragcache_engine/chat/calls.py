"""Read the tool calls in a model's answer, from the whole text or piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from ragcache_engine.chat.tools import CLOSE, OPEN


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. arguments: the JSON text that the model wrote; it may be malformed."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """The next part of one tool call. number: which of the answer's calls it belongs to.

    id, name: only in a call's first part. arguments: join those of all parts to get the call's.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of a model that may call tools. text: everything but the calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolAnswerPart:
    """What one more piece of an answer has completed: text and parts of calls; often nothing yet."""

    text: str = ""
    calls: tuple[ToolCallPart, ...] = ()


class ToolReader(Protocol):
    """Reads one answer: piece by piece with `read` and `end`, or at once with `whole`."""

    def read(self, text: str, token_ids: Sequence[int]) -> ToolAnswerPart:
        """Take the next piece of the answer, and return what it has completed."""

    def end(self) -> ToolAnswerPart:
        """Return what the reader still holds back. Call this when no more pieces come."""

    def whole(self, text: str) -> ToolAnswer:
        """Read a whole answer at once. Use a new reader for each answer."""


def make_call_id() -> str:
    """Return a new random id for a call, in the form of OpenAI's API."""
    return f"call_{uuid4().hex[:24]}"


def join_parts(parts: Sequence[ToolAnswerPart]) -> ToolAnswer:
    """Join all parts of one answer."""
    calls: dict[int, ToolCall] = {}
    for part in (call for answer in parts for call in answer.calls):
        known = calls.get(part.index) or ToolCall("", "", "")
        calls[part.index] = ToolCall(
            known.id or part.id or "",
            known.name or part.name or "",
            known.arguments + part.arguments,
        )
    return ToolAnswer("".join(part.text for part in parts), tuple(calls.values()))


@dataclass(slots=True)
class CallReader:
    """Read calls written as JSON between <tool_call> tags, and the text around them.

    Anything else between such tags counts as text.
    """

    _held: str = ""
    _calls: int = 0
    _is_after_call: bool = False
    _make_id: Callable[[], str] = field(default=make_call_id)

    def read(self, text: str, token_ids: Sequence[int] = ()) -> ToolAnswerPart:
        self._held += text
        part = self._take_complete_calls()
        return ToolAnswerPart(part.text + self._take_ready_text(), part.calls)

    def end(self) -> ToolAnswerPart:
        part = self._take_complete_calls()
        rest, self._held = self._held, ""
        before, tag, inside = rest.partition(OPEN)
        if tag and (calls := self._parse_numbered_calls(inside)):  # the closing tag was cut off
            return ToolAnswerPart(part.text + before.removesuffix("\n"), (*part.calls, *calls))
        return ToolAnswerPart(part.text + rest, part.calls)

    def whole(self, text: str) -> ToolAnswer:
        return join_parts([self.read(text), self.end()])

    def _take_complete_calls(self) -> ToolAnswerPart:
        """Take every complete call from the held text, and the text before these calls."""
        text, calls = "", list[ToolCallPart]()
        while (part := self._take_next_call()) is not None:
            text += part.text
            calls += part.calls
        return ToolAnswerPart(text, tuple(calls))

    def _take_next_call(self) -> ToolAnswerPart | None:
        """Take the next call from the held text, and the text before it; None if no call is complete."""
        if self._held and self._is_after_call:  # line breaks around a call are not text
            self._held, self._is_after_call = self._held.removeprefix("\n"), False
        start = self._held.find(OPEN)
        end = self._held.find(CLOSE, start)
        if start < 0 or end < 0:
            return None
        inside = self._held[start + len(OPEN) : end]
        before, all_of_it = self._held[:start], self._held[: end + len(CLOSE)]
        self._held = self._held[end + len(CLOSE) :]
        calls = self._parse_numbered_calls(inside)
        if not calls:
            return ToolAnswerPart(all_of_it)
        self._is_after_call = True
        return ToolAnswerPart(before.removesuffix("\n"), calls)

    def _take_ready_text(self) -> str:
        """Take the part of the held text that cannot become part of a call."""
        start = self._held.find(OPEN)
        if start < 0:
            start = len(self._held) - _overlap_length(self._held, OPEN)
        start -= self._held[:start].endswith("\n")  # it may be the line break before a call
        ready, self._held = self._held[:start], self._held[start:]
        return ready

    def _parse_numbered_calls(self, text: str) -> tuple[ToolCallPart, ...]:
        """Return the call or the list of calls between two tags, numbered; nothing for other text."""
        read = _parse_calls(text)
        first, self._calls = self._calls, self._calls + len(read)
        return tuple(
            ToolCallPart(number, self._make_id(), *call) for number, call in enumerate(read, first)
        )


_GUIDED_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
)
"""A guided call up to its arguments. The guide's schema names `name` first, so the answer does too."""


_FIRST_PROPERTY = re.compile(
    r'\s*\{\s*(?P<key>"(?:[^"\\]|\\.)*")(?:\s*:\s*(?P<value>"(?:[^"\\]|\\.)*"))?'
)


@dataclass(slots=True)
class GuidedReader:
    """Read an answer that `call_guide` or `call_or_answer_guide` has guided: one call, without tags.

    Its arguments are told while they are written. An answer in another form is told at its end.
    tools: the names of the tools, if the answer may have another form. Whatever is no call of these is
      told as soon as that is clear.
    """

    tools: frozenset[str] | None = None
    _held: str = ""
    _is_other: bool = False
    _arguments: _ObjectText | None = None
    _make_id: Callable[[], str] = field(default=make_call_id)

    def read(self, text: str, token_ids: Sequence[int] = ()) -> ToolAnswerPart:
        if self._arguments is not None:
            taken = self._arguments.take(text)
            return ToolAnswerPart("", (ToolCallPart(0, arguments=taken),) if taken else ())
        self._held += text
        if self._is_other or not self._may_be_call():
            other, self._held, self._is_other = self._held, "", True
            return ToolAnswerPart(other)
        head = _GUIDED_HEAD.match(self._held)
        name = _parse_string(head["name"]) if head else None
        if head is None or name is None:
            return ToolAnswerPart()
        self._arguments = _ObjectText()
        taken = self._arguments.take(self._held[head.end() :])
        return ToolAnswerPart("", (ToolCallPart(0, self._make_id(), name, taken),))

    def end(self) -> ToolAnswerPart:
        if self._arguments is not None:
            return ToolAnswerPart()
        held, self._held = self._held, ""
        call = _parse_call(held) or _parse_cut_call(held)
        if call is None or self._is_other or not self._is_among_tools(call[0], held):
            return ToolAnswerPart(held)
        return ToolAnswerPart("", (ToolCallPart(0, self._make_id(), *call),))

    def whole(self, text: str) -> ToolAnswer:
        return join_parts([self.read(text), self.end()])

    def _may_be_call(self) -> bool:
        """Return whether the held text is the beginning of a call, as far as it goes."""
        if self.tools is None:
            return True
        begun = self._held.lstrip()
        first = _FIRST_PROPERTY.match(begun)
        if first is None:
            return begun[:1] in ("", "{") and begun[1:].lstrip()[:1] in ("", '"')
        value = first["value"]
        return first["key"] == '"name"' and (value is None or _parse_string(value) in self.tools)

    def _is_among_tools(self, name: str, held: str) -> bool:
        return self.tools is None or (name in self.tools and '"arguments"' in held)


@dataclass(slots=True)
class _ObjectText:
    """Takes the text of one JSON object out of a text that goes on behind it."""

    _depth: int = 0
    _is_in_string: bool = False
    _is_escaped: bool = False
    _is_complete: bool = False

    def take(self, text: str) -> str:
        """Return the part of the next piece that belongs to the object."""
        for at, character in enumerate(text):
            if self._is_complete:
                return text[:at]
            self._read(character)
        return text

    def _read(self, character: str) -> None:
        if self._is_in_string:
            self._is_in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self._is_complete = self._depth == 0


def _parse_string(text: str) -> str | None:
    """Return the string that a JSON text stands for; None for text that is not JSON."""
    try:
        return str(json.loads(text))
    except ValueError:
        return None


def _parse_calls(text: str) -> list[tuple[str, str]]:
    """Return (name, arguments) of each call in a JSON list of calls, or of a single call.

    Return nothing if the text is not JSON, or anything in it is not a call.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return []
    read = [_name_and_arguments(call) for call in (found if isinstance(found, list) else [found])]
    calls = [call for call in read if call is not None]
    return calls if len(calls) == len(read) else []


def _parse_call(text: str) -> tuple[str, str] | None:
    """Return (name, arguments) of a text that is exactly one call, else None."""
    calls = _parse_calls(text)
    return calls[0] if len(calls) == 1 else None


def _name_and_arguments(call: Any) -> tuple[str, str] | None:
    """Return (name, arguments) of a call that was read from JSON; None if it is not a call."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call["name"], arguments


def _parse_cut_call(text: str) -> tuple[str, str] | None:
    """Return (name, arguments as far as they go) of a call that max_tokens or a stop string cut off."""
    head, colon, rest = text.partition('"arguments"')
    call = _parse_call(head.rstrip().rstrip(",") + "}") if colon else None
    return (call[0], rest.lstrip().removeprefix(":").lstrip()) if call else None


def _overlap_length(text: str, tag: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
