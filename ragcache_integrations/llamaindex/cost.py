"""What a query cost: the answers that the LLM gave to it, added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ragcache_engine import Usage


@dataclass(slots=True)
class QueryCost:
    """The answers that RAGCacheLLMs have given in a `measure_cost` block so far.

    answers: what each of them cost, in the order in which they ended.
    """

    answers: list[Usage] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return sum(usage.prompt_tokens for usage in self.answers)

    @property
    def completion_tokens(self) -> int:
        return sum(usage.output_tokens for usage in self.answers)

    @property
    def cached_tokens(self) -> int:
        """How many of the prompts' tokens were not computed again, as far as that is known."""
        return sum(usage.cached.total for usage in self.answers)

    @property
    def ttft_s(self) -> float | None:
        """The time to the first token of the first answer; None without an answer."""
        return self.answers[0].ttft_s if self.answers else None


# Each task and thread has its own value; tasks begin with that of the code that starts them.
_OPEN_BLOCKS: ContextVar[tuple[QueryCost, ...]] = ContextVar("ragcache_open_costs", default=())


@contextmanager
def measure_cost() -> Iterator[QueryCost]:
    """Add up what the RAGCacheLLMs' answers to the calls in this block cost.

        with measure_cost() as cost:
            query_engine.query("Why are there tides?")
        cost.prompt_tokens, cost.cached_tokens, cost.ttft_s

    Examples:
        >>> from ragcache_engine import EngineConfig, RAGCacheEngine
        >>> from ragcache_integrations.llamaindex import RAGCacheLLM, measure_cost
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> with measure_cost() as cost:
        ...     _ = RAGCacheLLM(engine=engine).complete("Why is the sky blue?")
        >>> len(cost.answers), cost.completion_tokens
        (1, 9)
        >>> engine.close()

    Only calls from this block count, also those of agents and query engines that it starts as tasks; so
    queries that run at the same time are told apart. A stream counts once it has been read to its end.
    """
    cost = QueryCost()
    token = _OPEN_BLOCKS.set((*_OPEN_BLOCKS.get(), cost))
    try:
        yield cost
    finally:
        _OPEN_BLOCKS.reset(token)


def cost_recorder() -> Callable[[Usage | None], None]:
    """Return a function that adds an answer's usage to the blocks that are open now."""
    blocks = _OPEN_BLOCKS.get()

    def record(usage: Usage | None) -> None:
        if usage is not None:
            for cost in blocks:
                cost.answers.append(usage)

    return record
