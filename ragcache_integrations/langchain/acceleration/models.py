"""Makes our model in place of a stock one, with the options that have the same meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel, BaseLanguageModel, BaseLLM

from ragcache_engine import BadRequest, NoChatTemplate, RAGCacheEngine
from ragcache_integrations.acceleration import (
    CannotCarry,
    Rules,
    carry_options,
    find_model_name,
    rename_options,
    settle_temperature,
)
from ragcache_integrations.langchain.chat import ChatRAGCache
from ragcache_integrations.langchain.llm import RAGCacheLLM

OurModel: TypeAlias = ChatRAGCache | RAGCacheLLM

_OF_LANGCHAIN = ("name", "cache", "verbose", "callbacks", "tags", "metadata")
_OF_CHAT_MODELS = ("disable_streaming",)
"""What our models have because every model of LangChain has it."""


def make_our_model(model: BaseLanguageModel[Any], rules: Rules) -> OurModel:
    """Return a model on the engine that samples as this one does.

    A chat model becomes a ChatRAGCache, an LLM a RAGCacheLLM. Raises CannotCarry.
    """
    if (reason := rules.reason_to_leave_model(name_of(model))) is not None:
        raise CannotCarry(reason)
    options = _options_of(model) | rename_options(rules.options)
    options = settle_temperature(options, model, _innermost(model))
    if options.get("max_new_tokens", 0) is None:
        options["max_new_tokens"] = rules.engine.limits.context_tokens
    if isinstance(model, BaseChatModel):
        _check_chat_template(rules.engine)
        kept = _values_of(model, (*_OF_LANGCHAIN, *_OF_CHAT_MODELS))
        # Not False: if that is set, some versions of LangChain stream to no callback that asks for it.
        if getattr(model, "streaming", None) is True:
            kept["streaming"] = True
        return _make(ChatRAGCache, rules.engine, options | kept)
    if isinstance(model, BaseLLM):
        options.pop("template_args", None)  # an LLM gets its prompts written
        return _make(RAGCacheLLM, rules.engine, options | _values_of(model, _OF_LANGCHAIN))
    raise CannotCarry("it is neither a chat model nor an LLM of LangChain")


def name_of(model: BaseLanguageModel[Any]) -> str | None:
    """Return the name under which a model asks for its model; None if it names none."""
    return find_model_name(model) or find_model_name(_innermost(model))


def find_refused_option(model: OurModel, options: Mapping[str, Any]) -> str | None:
    """Return why calls of our model cannot have these options; None if they can."""
    try:
        model.check_call(options)
    except (BadRequest, ValueError, TypeError, KeyError) as error:
        return f"the options bound to it cannot be carried: {error}"
    return None


def _make(kind: type[OurModel], engine: RAGCacheEngine, options: dict[str, Any]) -> OurModel:
    try:
        return kind(engine=engine, **options)
    except (BadRequest, ValueError) as error:
        raise CannotCarry(f"its options cannot be carried: {error}") from error


def _options_of(model: BaseLanguageModel[Any]) -> dict[str, Any]:
    options = carry_options(model)
    if (inner := _innermost(model)) is model:
        return options
    given = {name: value for name, value in options.items() if value is not None}
    return carry_options(inner) | given


def _innermost(model: BaseLanguageModel[Any]) -> BaseLanguageModel[Any]:
    """Return the LLM that a chat model such as ChatHuggingFace asks; the model itself for others."""
    inner = getattr(model, "llm", None)
    return inner if isinstance(inner, BaseLanguageModel) else model


def _values_of(model: BaseLanguageModel[Any], names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(model, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _check_chat_template(engine: RAGCacheEngine) -> None:
    try:
        engine.chat.prompt([{"role": "user", "content": "Hello"}])
    except NoChatTemplate as error:
        raise CannotCarry(f"the engine cannot write conversations: {error}") from error
