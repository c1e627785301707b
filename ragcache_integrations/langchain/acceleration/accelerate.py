"""`accelerate` for LangChain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable

from ragcache_engine import InvalidArgument, RAGCacheEngine
from ragcache_integrations.acceleration import (
    AccelerateArguments,
    AccelerationTask,
    ModelChoice,
    ReportTo,
    Rules,
    log_report,
)
from ragcache_integrations.langchain.acceleration.chain_copy import ChainCopier

Chain = TypeVar("Chain", bound=Runnable[Any, Any])


@overload
def accelerate(chain: BaseRetriever, **arguments: Unpack[AccelerateArguments]) -> BaseRetriever: ...
@overload
def accelerate(chain: BaseChatModel, **arguments: Unpack[AccelerateArguments]) -> BaseChatModel: ...
@overload
def accelerate(chain: BaseLLM, **arguments: Unpack[AccelerateArguments]) -> BaseLLM: ...
@overload
def accelerate(chain: Chain, **arguments: Unpack[AccelerateArguments]) -> Chain: ...
def accelerate(
    chain: Runnable[Any, Any],
    *,
    engine: RAGCacheEngine,
    models: ModelChoice = "same",
    retrievers: bool = True,
    keep: Sequence[object] = (),
    options: Mapping[str, Any] | None = None,
    report: ReportTo = log_report,
) -> Runnable[Any, Any]:
    """Return the chain with its retrievers and models swapped for ours, wherever they stand in it.

    The given chain stays as it is. `report=print` shows what was swapped, and what was left and why:

        >>> from langchain_core.language_models import FakeListChatModel
        >>> from langchain_core.prompts import ChatPromptTemplate
        >>> from ragcache_engine import EngineConfig, RAGCacheEngine
        >>> from ragcache_integrations.langchain import accelerate
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> stock = ChatPromptTemplate.from_template("{q}") | FakeListChatModel(responses=["no"])
        >>> chain = accelerate(stock, engine=engine, report=print)
        accelerate swapped 1 part and left none
          swapped FakeListChatModel at last for ChatRAGCache(temperature=0.0, max_new_tokens=512)
        >>> chain.invoke("Why is the sky blue?").content
        'You asked: Why is the sky blue?'
        >>> engine.close()

    chain: any Runnable: a sequence, branches, fallbacks, a binding, a retriever, a chain of
      langchain-classic, a compiled graph of LangGraph.
    models: which models are swapped. "same": those that ask for the engine's model, by the last part of
      its name or path, and those that name no model; "all": also those that ask for another model,
      so that the engine's model answers in its place; "none".
    retrievers: whether retrievers are swapped.
    keep: retrievers, models or other parts of the chain that stay as they are.
    options: sampling parameters for all swapped models, such as {"temperature": 0}, which replace those
      that the models had.
    report: called with the AccelerationReport. By default it is logged, as a warning if anything was left
      that you did not ask to leave.

    A Faiss store's own retriever becomes a RAGCacheRetriever. Any other becomes what
    `RAGCacheRetriever.from_retriever` makes of it: as a whole, if it holds further retrievers. A chat
    model becomes a ChatRAGCache, an LLM a RAGCacheLLM. Options with the same meaning are carried over:
    temperature, limits of tokens, top_p, penalties, seed, stop strings, and all that is bound, such as
    tools and structured output. A class that knows no temperature is taken to be greedy; if it knows one
    and does not set it, that is 1.0, and a limit of tokens that it does not set is none. A model with an
    option that the engine lacks is left.

    What a function does inside cannot be changed; retrievers and models that it uses are left. So is what
    cannot be copied. Stores and the sessions of histories are shared with the given chain.
    Raises InvalidArgument for what is no Runnable, and for wrong arguments.
    """
    if not isinstance(chain, Runnable):
        raise InvalidArgument(
            f"accelerate takes a chain, which is a Runnable of LangChain, got {type(chain).__name__}"
        )
    rules = Rules(engine, models, retrievers, keep, options or {})
    task = AccelerationTask(rules)
    accelerated: Runnable[Any, Any] = ChainCopier(task).copy(chain)
    report(task.report())
    return accelerated
