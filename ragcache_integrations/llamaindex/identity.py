"""What an LLM's answers depend on besides its parameters, in short, for caches of answers."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from llama_index.core.llms.llm import LLM

from ragcache_engine import EngineConfig


def fingerprint(config: EngineConfig, llm: LLM) -> str:
    """Return a text that differs between LLMs whose answers may differ, although their parameters agree.

    It is a hash, because vllm_args may hold secrets. Functions count by name, so that every process
    gets the same text.
    """
    parts: list[Any] = [
        config.backend == "memory",
        config.model,  # two folders may have one name
        config.server_url,
        config.chat_template,
        config.tool_parser,
        config.reasoning_parser,
        config.document_order,
        config.dedupe,
        [config.reuse, config.recompute_ratio, config.donors],
        {name: repr(value) for name, value in sorted(config.vllm_args.items())},
        # LlamaIndex leaves these out of what it saves.
        _name_of(llm.messages_to_prompt),
        _name_of(llm.completion_to_prompt),
        _name_of(llm.output_parser),
        llm.query_wrapper_prompt and llm.query_wrapper_prompt.get_template(),
    ]
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _name_of(part: Any) -> str | None:
    """Return the name of a function, or of an object's class."""
    if part is None:
        return None
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}.{named.__qualname__}"
