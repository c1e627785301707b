"""Walks through a query engine or a chat engine and returns a copy with other retrievers and LLMs.

LlamaIndex keeps the parts of its components in their attributes, mostly private ones. So a copy shares
all attributes but those in which something was swapped; no attribute is known by its name here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from types import MethodType
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.llms.llm import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptMixin
from llama_index.core.tools.types import BaseTool
from llama_index.core.types import BasePydanticProgram
from pydantic import BaseModel

from ragcache_engine import UnsupportedStore
from ragcache_integrations.acceleration import (
    FUNCTIONS,
    AccelerationTask,
    CannotCarry,
    MadeModels,
    describe_model,
    objects_used_by,
)
from ragcache_integrations.acceleration.task import KEPT
from ragcache_integrations.llamaindex.acceleration.llms import make_our_llm, name_of
from ragcache_integrations.llamaindex.acceleration.memories import own_memory
from ragcache_integrations.llamaindex.engine_retriever import EngineRetriever
from ragcache_integrations.llamaindex.llm import RAGCacheLLM
from ragcache_integrations.llamaindex.reporting_retriever import ReportingRetriever
from ragcache_integrations.llamaindex.retriever import RAGCacheRetriever

# PromptMixin: retrievers, query engines, synthesizers, selectors, evaluators, transforms, agents.
COMPONENTS = (
    PromptMixin,
    BaseChatEngine,
    BaseNodePostprocessor,
    BaseTool,
    BasePydanticProgram,
    BaseMemory,
    StructuredLLM,
)
"""The classes of LlamaIndex whose objects are made of parts that are swapped."""

_OURS = (EngineRetriever, RAGCacheLLM)


class ComponentCopier:
    """Copies components for one call of `accelerate`, and notes what it swaps and leaves."""

    def __init__(self, task: AccelerationTask) -> None:
        self._task = task
        self._rules = task.rules
        self._llms = MadeModels(lambda llm: make_our_llm(llm, self._rules))
        # The originals are kept too, so that no other object gets their ids meanwhile.
        self._copies: dict[tuple[int, bool], tuple[object, Any]] = {}
        self._looked_at: set[int] = set()

    def copy(self, part: Any, place: str = "", is_in_retriever: bool = False) -> Any:
        """Return the part with swapped parts inside; the part itself if nothing in it was swapped.

        place: where it stands. is_in_retriever: it belongs to a retriever that is swapped as a whole, so
          retrievers in it stay.
        """
        if isinstance(part, LLM) and not isinstance(part, StructuredLLM):
            return self._copy_llm(part, place)
        if isinstance(part, COMPONENTS):
            return self._copy_component(part, place, is_in_retriever)
        if isinstance(part, (list, tuple, dict)):
            return self._copy_container(part, place, is_in_retriever)
        if isinstance(part, FUNCTIONS):
            return self._copy_function(part, place, is_in_retriever)
        if hasattr(part, "__dict__") and not isinstance(part, type):
            reason = f"{type(part).__name__} holds it, which accelerate cannot copy"
            self._look_into(vars(part).values(), place, reason)
        return part

    def _copy_llm(self, llm: LLM, place: str) -> Any:
        if isinstance(llm, RAGCacheLLM):
            self._check_engine(llm, place)
            return llm
        name = name_of(llm)
        stock = type(llm).__name__ + (f"({name!r})" if name else "")
        if self._rules.models == "none" or self._rules.is_kept(llm):
            self._task.note_left(place, stock, KEPT, is_wanted=True)
            return llm
        ours = self._llms.make_once(llm)
        if isinstance(ours, CannotCarry):
            self._task.note_left(place, stock, str(ours))
            return llm
        self._task.note_swap(place, stock, describe_model(ours))
        return ours

    def _copy_component(self, part: Any, place: str, is_in_retriever: bool) -> Any:
        key = id(part), is_in_retriever
        if key not in self._copies:
            self._copies[key] = part, part  # for parts that lead back to this one
            self._copies[key] = part, self._copy_new_component(part, place, is_in_retriever)
        return self._copies[key][1]

    def _copy_new_component(self, part: Any, place: str, is_in_retriever: bool) -> Any:
        if isinstance(part, _OURS):
            self._check_engine(part, place)
            return part
        if self._rules.is_kept(part):
            self._task.note_left(place, type(part).__name__, KEPT, is_wanted=True)
            return part
        if isinstance(part, BaseRetriever):
            return self._copy_retriever(part, place, is_in_retriever)
        return self._copy_attributes(part, place, is_in_retriever)

    def _copy_retriever(self, retriever: BaseRetriever, place: str, is_in_retriever: bool) -> Any:
        # The LLMs in it are swapped; the prompt sees the nodes of the outermost retriever only.
        with_our_llms = self._copy_attributes(retriever, place, is_in_retriever=True)
        if is_in_retriever:
            return with_our_llms
        stock = type(retriever).__name__
        if not self._rules.retrievers:
            self._task.note_left(place, stock, KEPT, is_wanted=True)
            return with_our_llms
        if _holds_ours(retriever, set()):
            self._task.note_left(place, stock, "a retriever in it tells the engine already")
            return with_our_llms
        ours = self._our_retriever(with_our_llms)
        made_by = "from_index" if isinstance(ours, RAGCacheRetriever) else "from_retriever"
        self._task.note_swap(place, stock, f"RAGCacheRetriever.{made_by}")
        return ours

    def _our_retriever(self, retriever: BaseRetriever) -> BaseRetriever:
        # Another class, derived from this one, may search in another way.
        if type(retriever) is VectorIndexRetriever:
            try:
                return RAGCacheRetriever.with_settings_of(retriever, engine=self._rules.engine)
            except UnsupportedStore:
                pass
        return ReportingRetriever(retriever, engine=self._rules.engine)

    def _copy_attributes(self, part: Any, place: str, is_in_retriever: bool) -> Any:
        notes_before = self._task.notes_count
        changes = {}
        for name, value in _attributes_of(part).items():
            if _is_method_of(value, part):
                continue
            new = self.copy(value, _join(place, name), is_in_retriever)
            if new is not value:
                changes[name] = new
        if isinstance(part, BaseChatEngine) and changes:
            changes |= _own_memories(part, changes)
        if not changes:
            return part
        twin = self._task.copy_or_leave(place, part, lambda: _updated(part, changes), notes_before)
        if twin is part:  # the copies in it are lost with their notes, so other places copy anew
            kept = {key: pair for key, pair in self._copies.items() if pair[0] is pair[1]}
            self._copies = kept
        return twin

    def _copy_container(self, parts: Any, place: str, is_in_retriever: bool) -> Any:
        if isinstance(parts, Mapping):
            mapped = {
                key: self.copy(value, _join(place, key), is_in_retriever)
                for key, value in parts.items()
            }
            return parts if all(mapped[key] is parts[key] for key in mapped) else mapped
        copies = [
            self.copy(each, f"{place}[{at}]", is_in_retriever) for at, each in enumerate(parts)
        ]
        if all(new is old for new, old in zip(copies, parts, strict=True)):
            return parts
        return copies if isinstance(parts, list) else tuple(copies)

    def _copy_function(self, function: Any, place: str, is_in_retriever: bool) -> Any:
        if isinstance(function, MethodType) and isinstance(function.__self__, (LLM, *COMPONENTS)):
            owner = self.copy(function.__self__, place, is_in_retriever)
            same = owner is function.__self__
            return function if same else getattr(owner, function.__name__)
        if isinstance(function, partial):
            args = self.copy(function.args, place, is_in_retriever)
            keywords = self.copy(function.keywords, place, is_in_retriever)
            inner = self.copy(function.func, place, is_in_retriever)
            if (inner, args, keywords) != (function.func, function.args, function.keywords):
                return partial(inner, *args, **keywords)
            return function
        reason = f"the function {getattr(function, '__name__', 'there')}() uses it"
        self._look_into(objects_used_by(function), place, reason)
        return function

    def _look_into(self, parts: Iterable[object], place: str, reason: str) -> None:
        """Note the retrievers and LLMs among these parts, and in the components among them, as left."""
        for part in parts:
            if not isinstance(part, (LLM, *COMPONENTS)) or id(part) in self._looked_at:
                continue
            self._looked_at.add(id(part))
            trial = AccelerationTask(self._rules)
            copier = ComponentCopier(trial)
            copier._looked_at = self._looked_at
            copier.copy(part)
            self._task.note_inside(trial.report(), place, reason)

    def _check_engine(self, part: Any, place: str) -> None:
        if part.engine is not self._rules.engine:
            self._task.note_left(place, type(part).__name__, "it belongs to another engine")


def _own_memories(part: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    attributes = _attributes_of(part) | dict(changes)
    return {
        name: own_memory(value)
        for name, value in attributes.items()
        if isinstance(value, BaseMemory)
    }


def _attributes_of(part: Any) -> dict[str, Any]:
    private = (part.__pydantic_private__ or {}) if isinstance(part, BaseModel) else {}
    return {**vars(part), **private}


def _updated(part: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy with these attributes. Its methods among the attributes become its own.

    Raises LookupError if a function among the attributes works on the original.
    """
    twin = part.model_copy() if isinstance(part, BaseModel) else copy(part)
    for name, value in _attributes_of(part).items():
        if name in changes:
            value = changes[name]
        elif _is_method_of(value, part):
            value = MethodType(value.__func__, twin)
        elif isinstance(value, FUNCTIONS) and any(used is part for used in objects_used_by(value)):
            raise LookupError(f"its attribute {name} is a function that works on the original")
        else:
            continue
        _set_attribute(twin, name, value)
    return twin


def _set_attribute(part: Any, name: str, value: Any) -> None:
    # Not setattr, because some components have properties that keep others from changing.
    if isinstance(part, BaseModel) and name in (part.__pydantic_private__ or {}):
        part.__pydantic_private__[name] = value  # type: ignore[index]
    else:
        part.__dict__[name] = value


def _is_method_of(value: Any, part: Any) -> bool:
    return isinstance(value, MethodType) and value.__self__ is part


def _holds_ours(part: Any, seen: set[int]) -> bool:
    if id(part) in seen:
        return False
    seen.add(id(part))
    if isinstance(part, EngineRetriever):
        return True
    if isinstance(part, COMPONENTS):
        return any(_holds_ours(value, seen) for value in _attributes_of(part).values())
    if isinstance(part, dict):
        return any(_holds_ours(value, seen) for value in part.values())
    return isinstance(part, (list, tuple)) and any(_holds_ours(each, seen) for each in part)


def _join(place: str, name: object) -> str:
    shown = str(name).strip("_")
    return f"{place}.{shown}" if place else shown
