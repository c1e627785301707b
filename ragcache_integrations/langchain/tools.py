"""Theirs to ours: what LangChain lets a caller say of tools, and which of them must be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ragcache_engine import (
    BadRequest,
    RAGCacheEngine,
    SamplingOptions,
    ToolReader,
)

MUST_CALL = ("any", "required")


@dataclass(frozen=True, slots=True)
class BoundTools:
    """Tools as in OpenAI's chat API.

    must_call: the answer is a call of one of them; name: of this one.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    must_call: bool = False
    name: str | None = None

    @classmethod
    def from_choice(cls, tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> Self:
        """choice: None or "auto", "none", "any" or "required" or True, a tool's name, or
        {"type": "function", "function": {"name": ...}}.

        Raises BadRequest for any other, or the name of none of the tools.
        """
        if not tools or choice == "none":
            return cls()
        if choice in (None, False, "auto"):
            return cls(tools)
        if choice is True or choice in MUST_CALL:
            return cls(tools, must_call=True)
        name = choice["function"]["name"] if isinstance(choice, Mapping) else choice
        names = [tool["function"]["name"] for tool in tools]
        if name not in names:
            raise BadRequest(
                f"tool_choice={choice!r} names no tool that is bound: give one of "
                f"{', '.join(names)}, 'any', 'auto' or 'none'"
            )
        return cls(tools, must_call=True, name=name)

    def add_to_options(self, engine: RAGCacheEngine, options: SamplingOptions) -> SamplingOptions:
        if not self.tools:
            return options
        return engine.tool_options(options, self.tools, must_call=self.must_call, name=self.name)

    def make_reader(self, engine: RAGCacheEngine) -> ToolReader | None:
        if not self.tools:
            return None
        return engine.tool_reader(self.tools, must_call=self.must_call)
