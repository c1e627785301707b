"""The chain inside a RunnableWithMessageHistory, which keeps it in functions only."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from langchain_core.runnables import Runnable, RunnableBinding, RunnableLambda, RunnableSequence
from langchain_core.runnables.history import RunnableWithMessageHistory

from ragcache_integrations.acceleration import objects_used_by

_SETTINGS = (
    "input_messages_key",
    "output_messages_key",
    "history_messages_key",
    "history_factory_config",
    "kwargs",
    "config",
    "config_factories",
    "custom_input_type",
    "custom_output_type",
)


def chain_with_history(history: RunnableWithMessageHistory) -> Runnable[Any, Any] | None:
    """Return the chain that the constructor got; None if it is not where this LangChain puts it.

    The constructor binds a listener to the chain, and hides the result in a function.
    """
    for function in _functions_in(history.bound):
        for used in objects_used_by(function):
            if isinstance(used, RunnableBinding) and used.config_factories:
                return _without_listener(used)
    return None


def with_history_of(
    history: RunnableWithMessageHistory, chain: Runnable[Any, Any]
) -> RunnableWithMessageHistory:
    """Return another RunnableWithMessageHistory around a chain, with the same sessions."""
    settings = {name: getattr(history, name) for name in _SETTINGS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user has seen that the class is deprecated
        return RunnableWithMessageHistory(chain, history.get_session_history, **settings)


def _functions_in(runnable: Any) -> Iterator[Any]:
    if isinstance(runnable, RunnableBinding):
        yield from _functions_in(runnable.bound)
    elif isinstance(runnable, RunnableSequence):
        yield from _functions_in(runnable.last)
    elif isinstance(runnable, RunnableLambda) and hasattr(runnable, "func"):
        yield runnable.func


def _without_listener(bound: RunnableBinding[Any, Any]) -> Runnable[Any, Any]:
    factories = bound.config_factories[:-1]
    if not (bound.kwargs or bound.config or factories):
        return bound.bound
    return bound.model_copy(update={"config_factories": factories})
