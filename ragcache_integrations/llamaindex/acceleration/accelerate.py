"""`accelerate` for LlamaIndex."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms.llm import LLM

from ragcache_engine import InvalidArgument, RAGCacheEngine
from ragcache_integrations.acceleration import (
    AccelerateArguments,
    AccelerationTask,
    ModelChoice,
    ReportTo,
    Rules,
    log_report,
)
from ragcache_integrations.llamaindex.acceleration.component_copy import (
    COMPONENTS,
    ComponentCopier,
)

Component = TypeVar("Component")


@overload
def accelerate(
    component: BaseRetriever, **arguments: Unpack[AccelerateArguments]
) -> BaseRetriever: ...
@overload
def accelerate(component: LLM, **arguments: Unpack[AccelerateArguments]) -> LLM: ...
@overload
def accelerate(component: Component, **arguments: Unpack[AccelerateArguments]) -> Component: ...
def accelerate(
    component: Any,
    *,
    engine: RAGCacheEngine,
    models: ModelChoice = "same",
    retrievers: bool = True,
    keep: Sequence[object] = (),
    options: Mapping[str, Any] | None = None,
    report: ReportTo = log_report,
) -> Any:
    """Return the query engine with its retrievers and LLMs swapped for ours, wherever they stand in it.

        query_engine = accelerate(index.as_query_engine(), engine=engine, report=print)

    The given query engine stays as it is. `report=print` shows what was swapped, and what was left and
    why.

    Examples:
        >>> from llama_index.core.chat_engine import SimpleChatEngine
        >>> from llama_index.core.llms import MockLLM
        >>> from ragcache_engine import EngineConfig, RAGCacheEngine
        >>> from ragcache_integrations.llamaindex import accelerate
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> stock = SimpleChatEngine.from_defaults(llm=MockLLM(max_tokens=8))
        >>> chat_engine = accelerate(stock, engine=engine, report=print)
        accelerate swapped 1 part and left none
          swapped MockLLM at llm for RAGCacheLLM(temperature=0.0, max_new_tokens=8)
        >>> engine.close()

    component: a query engine, a chat engine, a retriever, or another component of LlamaIndex: a response
      synthesizer, a tool, an agent.
    models: which LLMs are swapped. "same": those that ask for the engine's model, by the last part of its
      name or path, and those that name no model; "all": also those that ask for another model, so that
      the engine's model answers in its place; "none".
    retrievers: whether retrievers are swapped.
    keep: retrievers, LLMs or other components that stay as they are.
    options: sampling parameters for all swapped LLMs, such as {"temperature": 0}, which replace those
      that the LLMs had.
    report: called with the AccelerationReport. By default it is logged, as a warning if anything was left
      that you did not ask to leave.

    The own retriever of an index over Faiss becomes a RAGCacheRetriever. Any other becomes what
    `RAGCacheRetriever.from_retriever` makes of it: as a whole, if it holds further retrievers. An LLM
    becomes a RAGCacheLLM, which sends prompts and conversations in the same form. Options with the same
    meaning are carried over: temperature, limits of tokens, top_p, penalties, seed, stop strings. A class
    that knows no temperature is taken to be greedy; if it knows one and does not set it, that is 1.0, and
    a limit of tokens that it does not set is 512. An LLM with an option that the engine lacks is left.

    What a function does inside cannot be changed; retrievers and LLMs that it uses are left. So is what
    cannot be copied. Indexes and stores are shared with the given query engine. A chat engine's memory is
    copied if it lies in this process; in a database, the session goes on.
    Raises InvalidArgument for what is no component, and for wrong arguments.
    """
    if not isinstance(component, (LLM, *COMPONENTS)):
        advice = "; give index.as_query_engine()" if isinstance(component, BaseIndex) else ""
        raise InvalidArgument(
            f"accelerate takes a query engine, a chat engine, a retriever or another component of "
            f"LlamaIndex, got {type(component).__name__}{advice}"
        )
    task = AccelerationTask(Rules(engine, models, retrievers, keep, options or {}))
    accelerated = ComponentCopier(task).copy(component)
    report(task.report())
    return accelerated
