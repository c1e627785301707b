"""Check conversations before a chat template writes them; offer tools to a model and read its calls."""

from ragcache_engine.chat.cache_points import (
    are_marked,
    cache_point,
    find_points,
    without_marks,
)
from ragcache_engine.chat.calls import (
    CallReader,
    GuidedReader,
    ToolAnswer,
    ToolAnswerPart,
    ToolCall,
    ToolCallPart,
    ToolReader,
)
from ragcache_engine.chat.messages import check_messages, check_template_args
from ragcache_engine.chat.tools import (
    call_guide,
    call_or_answer_guide,
    check_tools,
    describe_tools,
    tool_names,
)

__all__ = [
    "CallReader",
    "GuidedReader",
    "ToolAnswer",
    "ToolAnswerPart",
    "ToolCall",
    "ToolCallPart",
    "ToolReader",
    "are_marked",
    "cache_point",
    "call_guide",
    "call_or_answer_guide",
    "check_messages",
    "check_template_args",
    "check_tools",
    "describe_tools",
    "find_points",
    "tool_names",
    "without_marks",
]
