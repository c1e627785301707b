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
    by_call: dict[int, list[ToolCallPart]] = {}
    for part in (call for answer in parts for call in answer.calls):
        by_call.setdefault(part.index, []).append(part)
    calls = tuple(
        ToolCall(
            next((part.id for part in of_call if part.id), ""),
            next((part.name for part in of_call if part.name), ""),
            "".join(part.arguments for part in of_call),
        )
        for of_call in by_call.values()
    )
    return ToolAnswer("".join(part.text for part in parts), calls)


@dataclass(slots=True)
class CallReader:
    """Read calls written as JSON between <tool_call> tags, and the text around them.

    Anything else between such tags counts as text.
    """

    _held: str = ""  # may be the beginning of the next tag, or the line break before a call
    _inside: list[str] | None = None  # what stands behind an opening tag; None: none is open
    _break: str = ""  # the line break before that tag
    _calls: int = 0
    _is_after_call: bool = False
    _make_id: Callable[[], str] = field(default=make_call_id)

    def read(self, text: str, token_ids: Sequence[int] = ()) -> ToolAnswerPart:
        text, at = self._held + text, 0
        said, calls = list[str](), list[ToolCallPart]()
        while True:
            if self._inside is None:
                if self._is_after_call and at < len(text):  # line breaks around a call are not text
                    at, self._is_after_call = at + text.startswith("\n", at), False
                start = text.find(OPEN, at)
                if start < 0:
                    break
                self._break = "\n" if text.endswith("\n", at, start) else ""
                said.append(text[at : start - len(self._break)])
                self._inside, at = [], start + len(OPEN)
            end = text.find(CLOSE, at)
            if end < 0:
                break
            inside = "".join((*self._inside, text[at:end]))
            self._inside, at = None, end + len(CLOSE)
            if found := self._parse_numbered_calls(inside):
                calls += found
                self._is_after_call = True
            else:
                said += [self._break, OPEN, inside, CLOSE]
        said.append(self._hold_back(text[at:]))
        return ToolAnswerPart("".join(said), tuple(calls))

    def end(self) -> ToolAnswerPart:
        rest, self._held = self._held, ""
        if self._inside is None:
            return ToolAnswerPart(rest)
        inside, self._inside = "".join((*self._inside, rest)), None
        if calls := self._parse_numbered_calls(inside):  # the closing tag was cut off
            return ToolAnswerPart("", calls)
        return ToolAnswerPart(self._break + OPEN + inside)

    def whole(self, text: str) -> ToolAnswer:
        return join_parts([self.read(text), self.end()])

    def _hold_back(self, text: str) -> str:
        """Keep what stands inside a tag or may become part of one; return the text before it."""
        if self._inside is not None:
            ready = len(text) - overlap_length(text, CLOSE)
            self._inside.append(text[:ready])
            self._held = text[ready:]
            return ""
        ready = len(text) - overlap_length(text, OPEN)
        ready -= text.endswith("\n", 0, ready)  # it may be the line break before a call
        self._held = text[ready:]
        return text[:ready]

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
    _held: list[str] = field(default_factory=list)
    _is_call: bool = False
    _is_other: bool = False
    _arguments: _ObjectText | None = None
    _make_id: Callable[[], str] = field(default=make_call_id)

    def read(self, text: str, token_ids: Sequence[int] = ()) -> ToolAnswerPart:
        if self._arguments is not None:
            taken = self._arguments.take(text)
            return ToolAnswerPart("", (ToolCallPart(0, arguments=taken),) if taken else ())
        if self._is_other:
            return ToolAnswerPart(text)
        self._held.append(text)
        if (self._is_call or self.tools is None) and "{" not in text:  # a head ends before one
            return ToolAnswerPart()
        held = "".join(self._held)
        if self.tools is not None and not self._is_call:
            is_call = _begins_call(held, self.tools)
            if is_call is False:
                self._held, self._is_other = [], True
                return ToolAnswerPart(held)
            self._is_call = bool(is_call)
        head = _GUIDED_HEAD.match(held)
        name = _parse_string(head["name"]) if head else None
        if head is None or name is None:
            return ToolAnswerPart()
        self._arguments = _ObjectText()
        taken = self._arguments.take(held[head.end() :])
        return ToolAnswerPart("", (ToolCallPart(0, self._make_id(), name, taken),))

    def end(self) -> ToolAnswerPart:
        if self._arguments is not None:
            return ToolAnswerPart()
        held, self._held = "".join(self._held), []
        call = _parse_call(held) or _parse_cut_call(held)
        if call is None or not self._is_among_tools(call[0], held):
            return ToolAnswerPart(held)
        return ToolAnswerPart("", (ToolCallPart(0, self._make_id(), *call),))

    def whole(self, text: str) -> ToolAnswer:
        return join_parts([self.read(text), self.end()])

    def _is_among_tools(self, name: str, held: str) -> bool:
        return self.tools is None or (name in self.tools and '"arguments"' in held)


def _begins_call(text: str, tools: frozenset[str]) -> bool | None:
    """Return whether a text begins a call of one of these tools; None while it may still become one."""
    begun = text.lstrip()
    first = _FIRST_PROPERTY.match(begun)
    if first is not None and first["key"] != '"name"':
        return False
    if first is not None and first["value"] is not None:
        return _parse_string(first["value"]) in tools
    is_object = begun[:1] in ("", "{") and begun[1:].lstrip()[:1] in ("", '"')
    longest = 64 + 6 * max(map(len, tools), default=0)  # a character has six as an escape
    return None if is_object and len(text) <= longest else False


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
    except (ValueError, RecursionError):
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
    return _as_text(call["name"]), _as_text(arguments)


def _as_text(written: str) -> str:
    """Return what a model has written so that it can be encoded: it may be half of a character's code."""
    return written.encode(errors="replace").decode()


def _parse_cut_call(text: str) -> tuple[str, str] | None:
    """Return (name, arguments as far as they go) of a call that max_tokens or a stop string cut off."""
    head, colon, rest = text.partition('"arguments"')
    call = _parse_call(head.rstrip().rstrip(",") + "}") if colon else None
    return (call[0], rest.lstrip().removeprefix(":").lstrip()) if call else None


def overlap_length(text: str, tag: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
