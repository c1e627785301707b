"""Makes a RAGCacheLLM in place of a stock LLM, with the options that have the same meaning."""

from __future__ import annotations

from functools import partial
from typing import Any

from llama_index.core.base.llms.generic_utils import (
    messages_to_prompt as generic_messages_to_prompt,
)
from llama_index.core.llms.llm import LLM

from ragcache_engine import BadRequest, NoChatTemplate, RAGCacheEngine
from ragcache_integrations.acceleration import (
    CannotCarry,
    Rules,
    carry_options,
    find_model_name,
    rename_options,
    settle_temperature,
)
from ragcache_integrations.llamaindex.llm import RAGCacheLLM

_OF_LLAMAINDEX = (
    "system_prompt",
    "messages_to_prompt",
    "completion_to_prompt",
    "output_parser",
    "pydantic_program_mode",
    "query_wrapper_prompt",
    "callback_manager",
)
"""What every LLM of LlamaIndex has."""

_NO_NAME = "unknown"
"""The name in the metadata of an LLM that names no model."""


def make_our_llm(llm: LLM, rules: Rules) -> RAGCacheLLM:
    """Return an LLM on the engine that samples and writes prompts as this one does.

    Raises CannotCarry.
    """
    if (reason := rules.reason_to_leave_model(name_of(llm))) is not None:
        raise CannotCarry(reason)
    options = _options_of(llm, rules)
    told = llm.metadata
    if told.is_chat_model or told.is_function_calling_model:
        _check_chat_template(rules.engine)
    kept: dict[str, Any] = {name: getattr(llm, name) for name in _OF_LLAMAINDEX}
    if not told.is_chat_model and llm.messages_to_prompt is generic_messages_to_prompt:
        # The stock LLM writes its conversations with this function; ours would not by itself.
        kept["messages_to_prompt"] = partial(generic_messages_to_prompt)
    try:
        return RAGCacheLLM(
            engine=rules.engine,
            is_chat_model=told.is_chat_model,
            is_function_calling_model=told.is_function_calling_model,
            **options,
            **kept,
        )
    except (BadRequest, ValueError) as error:
        raise CannotCarry(f"its options cannot be carried: {error}") from error


def name_of(llm: LLM) -> str | None:
    """Return the name under which an LLM asks for its model; None if it names none."""
    name = llm.metadata.model_name
    return name if name and name != _NO_NAME else find_model_name(llm)


def _options_of(llm: LLM, rules: Rules) -> dict[str, Any]:
    options = settle_temperature(carry_options(llm) | rename_options(rules.options), llm)
    if template_args := options.pop("template_args", None):
        raise CannotCarry(f"our LLM cannot honour its chat_template_kwargs={template_args!r}")
    if options.get("max_new_tokens", 0) is None:
        # No limit would leave LlamaIndex, which packs prompts by it, no room for a prompt.
        del options["max_new_tokens"]
    return options


def _check_chat_template(engine: RAGCacheEngine) -> None:
    try:
        engine.chat.prompt([{"role": "user", "content": "Hello"}])
    except NoChatTemplate as error:
        raise CannotCarry(f"the engine cannot write conversations: {error}") from error
