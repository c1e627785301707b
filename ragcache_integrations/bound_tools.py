"""Translates the frameworks' tools and tool_choice for the engine."""

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
    """Tools in the form of OpenAI's chat API, and which of them must be called.

    must_call: the answer must be a call of one of the tools.
    name: the one tool that must be called; None leaves the choice to the model.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    must_call: bool = False
    name: str | None = None

    @classmethod
    def from_choice(cls, tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> Self:
        """Read the frameworks' arguments.

        choice: None or "auto", "none", "any" or "required" or True, a tool's name, or
        {"type": "function", "function": {"name": ...}}.
        Raises BadRequest for another choice, or a name that none of the tools has.
        """
        if not tools or choice == "none":
            return cls()
        if choice in (None, False, "auto"):
            return cls(tools)
        if choice is True or choice in MUST_CALL:
            return cls(tools, must_call=True)
        match choice:
            case {"function": {"name": name}}:
                pass
            case _:
                name = choice
        names = [tool["function"]["name"] for tool in tools]
        if name not in names:
            raise BadRequest(
                f"tool_choice={choice!r} names no tool that is bound: give one of "
                f"{', '.join(names)}, 'any', 'auto' or 'none'"
            )
        return cls(tools, must_call=True, name=name)

    def add_to_options(self, engine: RAGCacheEngine, options: SamplingOptions) -> SamplingOptions:
        """Return the options with the guide that leaves room for calls, or for nothing else."""
        if not self.tools:
            return options
        return engine.chat.tool_options(
            options, self.tools, must_call=self.must_call, name=self.name
        )

    def make_reader(self, engine: RAGCacheEngine, options: SamplingOptions) -> ToolReader | None:
        """Return the reader of tool calls for one answer; None without tools.

        options: as `add_to_options` returned them.
        """
        if not self.tools:
            return None
        return engine.chat.tool_reader(
            self.tools, must_call=self.must_call, is_guided=options.guide is not None
        )
