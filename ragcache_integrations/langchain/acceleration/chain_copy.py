"""Walks through a chain and returns a copy with other retrievers and models.

Nothing of the original changes. What holds no retriever and no model is shared by both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.runnables.configurable import RunnableConfigurableFields
from langchain_core.runnables.history import RunnableWithMessageHistory
from pydantic import BaseModel

from ragcache_integrations.acceleration import (
    FUNCTIONS,
    AccelerationTask,
    CannotCarry,
    MadeModels,
    describe_model,
    objects_used_by,
    rename_options,
)
from ragcache_integrations.acceleration.task import KEPT
from ragcache_integrations.langchain.acceleration.graphs import is_graph, with_chains
from ragcache_integrations.langchain.acceleration.histories import (
    chain_with_history,
    with_history_of,
)
from ragcache_integrations.langchain.acceleration.models import (
    OurModel,
    find_refused_option,
    make_our_model,
    name_of,
)
from ragcache_integrations.langchain.acceleration.retrievers import (
    describe_retriever,
    make_our_retriever,
    name_of_ours,
)
from ragcache_integrations.langchain.engine_retriever import EngineRetriever
from ragcache_integrations.langchain.model_base import EngineModel

_NO_PARTS = (BasePromptTemplate, Embeddings, Document, BaseMessage)
"""Classes whose objects hold no retriever and no model."""

_SWAPPED = (BaseLanguageModel, BaseRetriever)

_LOOKED_INTO = (Runnable, list, tuple, dict, *FUNCTIONS)
"""What may hold a retriever or a model that stays because it stands in a function, say."""

_SETTINGS = (
    "config",
    "config_factories",
    "kwargs",
    "callbacks",
    "metadata",
    "tags",
    "cache",
    "name",
)
"""Fields of runnables that are no parts of the chain."""

_PASS_OPTIONS_ON = ("bound", "runnable", "fallbacks", "default", "alternatives", "first")
"""Fields whose runnables get the options that are bound to the runnable around them."""


class ChainCopier:
    """Copies chains for one call of `accelerate`, and notes what it swaps and leaves."""

    def __init__(self, task: AccelerationTask) -> None:
        self._task = task
        self._rules = task.rules
        self._models: MadeModels[OurModel] = MadeModels(
            lambda model: make_our_model(model, self._rules)
        )
        # The originals are kept too, so that no other object gets their ids meanwhile.
        self._retrievers: dict[int, tuple[object, EngineRetriever]] = {}
        self._memories: dict[int, tuple[object, Any]] = {}
        # The memo of deepcopy: what it has copied already, and what it is not to copy.
        self._memo: dict[int, Any] = {id(kept): kept for kept in self._rules.keep}
        self._looked_at: set[int] = set()

    def copy(
        self,
        part: Any,
        place: str = "",
        options: Mapping[str, Any] | None = None,
        is_in_retriever: bool = False,
    ) -> Any:
        """Return the part with swapped parts inside; the part itself if nothing in it was swapped.

        place: where it stands. options: what is bound to its calls from outside. is_in_retriever: it
          belongs to a retriever that is swapped as a whole, so retrievers in it stay.
        """
        if isinstance(part, _NO_PARTS):
            return part
        if isinstance(part, BaseLanguageModel):
            return self._copy_model(part, place, options or {})
        if isinstance(part, BaseRetriever):
            return self._copy_retriever(part, place, is_in_retriever)
        if self._rules.is_kept(part):
            self._task.note_left(place, type(part).__name__, KEPT, is_wanted=True)
            return part
        if isinstance(part, RunnableWithMessageHistory):
            return self._copy_history(part, place)
        if isinstance(part, BaseModel):
            return self._copy_fields(part, place, options or {}, is_in_retriever)
        if isinstance(part, (list, tuple, Mapping)):
            return self._copy_container(part, place, options, is_in_retriever)
        if is_graph(part):
            return self._copy_graph(part, place)
        if isinstance(part, FUNCTIONS):
            self._look_into(objects_used_by(part), place, f"the function {_name(part)}() uses it")
        elif isinstance(part, Runnable):
            self._look_into_runnable(part, place)
        elif hasattr(part, "__dict__") and not isinstance(part, type):
            held = [each for each in vars(part).values() if isinstance(each, _SWAPPED)]
            self._look_into(held, place, f"{type(part).__name__} holds it, which cannot be copied")
        return part

    def _copy_model(self, model: BaseLanguageModel[Any], place: str, options: Any) -> Any:
        if isinstance(model, EngineModel):
            if model.engine is not self._rules.engine:
                self._task.note_left(place, type(model).__name__, "it runs on another engine")
            return model
        name = name_of(model)
        stock = type(model).__name__ + (f"({name!r})" if name else "")
        if self._rules.models == "none" or self._rules.is_kept(model):
            self._task.note_left(place, stock, KEPT, is_wanted=True)
            return model
        ours = self._models.make_once(model)
        reason = str(ours) if isinstance(ours, CannotCarry) else find_refused_option(ours, options)
        if isinstance(ours, CannotCarry) or reason:
            self._task.note_left(place, stock, reason or "")
            return model
        self._task.note_swap(place, stock, describe_model(ours))
        return ours

    def _copy_retriever(self, retriever: BaseRetriever, place: str, is_in_retriever: bool) -> Any:
        stock = describe_retriever(retriever)
        if isinstance(retriever, EngineRetriever):
            if retriever.engine is not self._rules.engine:
                self._task.note_left(place, stock, "it tells another engine")
            return retriever
        if self._rules.is_kept(retriever):
            self._task.note_left(place, stock, KEPT, is_wanted=True)
            return retriever
        # The models in it are swapped; the prompt sees the documents of the outermost retriever only.
        with_our_models = self._copy_fields(retriever, place, {}, is_in_retriever=True)
        if is_in_retriever:
            return with_our_models
        if not self._rules.retrievers:
            self._task.note_left(place, stock, KEPT, is_wanted=True)
            return with_our_models
        if _holds_ours(retriever):
            self._task.note_left(place, stock, "a retriever in it tells the engine already")
            return with_our_models
        known = self._retrievers.get(id(retriever))
        ours = known[1] if known else make_our_retriever(with_our_models, self._rules.engine)
        self._retrievers[id(retriever)] = retriever, ours
        self._task.note_swap(place, stock, name_of_ours(ours))
        return ours

    def _copy_fields(
        self, part: BaseModel, place: str, options: Mapping[str, Any], is_in_retriever: bool
    ) -> Any:
        notes_before = self._task.notes_count
        bound = {**getattr(part, "kwargs", {}), **options} if hasattr(part, "bound") else options
        changes = {}
        for name, value in _fields_of(part).items():
            passed_on = bound if name in _PASS_OPTIONS_ON else None
            new = self.copy(value, _join(place, name), passed_on, is_in_retriever)
            if new is not value:
                changes[name] = new
        self._look_into(
            (part.__pydantic_private__ or {}).values(),
            place,
            f"a private attribute of {type(part).__name__} holds it",
        )
        if not changes:
            return part

        def make() -> BaseModel:
            return _updated(part, changes | self._own_memory(part, changes))

        return self._task.copy_or_leave(place, part, make, notes_before)

    def _own_memory(self, part: BaseModel, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the memory of a chain's copy, or else both chains write into one history.

        Copies of chains with one memory, or with memories of one history, have that in common too.
        """
        memory = vars(part).get("memory")
        if not hasattr(memory, "save_context") or self._rules.is_kept(memory):
            return {}
        if id(memory) not in self._memories:
            before = dict(self._memo)
            try:
                own = deepcopy(changes.get("memory", memory), self._memo)
            except Exception:
                self._memo.clear()  # of what was half copied
                self._memo.update(before)
                raise
            self._memories[id(memory)] = memory, own
        return {"memory": self._memories[id(memory)][1]}

    def _copy_container(self, parts: Any, place: str, options: Any, is_in_retriever: bool) -> Any:
        if isinstance(parts, Mapping):
            mapped = {
                key: self.copy(value, _join(place, key), options, is_in_retriever)
                for key, value in parts.items()
            }
            is_same = all(mapped[key] is parts[key] for key in mapped)
            return parts if is_same else mapped
        copies = [
            self.copy(each, f"{place}[{at}]", options, is_in_retriever)
            for at, each in enumerate(parts)
        ]
        if all(new is old for new, old in zip(copies, parts, strict=True)):
            return parts
        return copies if isinstance(parts, list) else tuple(copies)

    def _copy_history(self, history: RunnableWithMessageHistory, place: str) -> Any:
        notes_before = self._task.notes_count
        chain = chain_with_history(history)
        if chain is None or type(history) is not RunnableWithMessageHistory:
            self._task.note_left(
                place,
                f"what is in the {type(history).__name__}",
                "its chain cannot be taken out; accelerate the chain before you wrap it",
            )
            return history
        new = self.copy(chain, _join(place, "runnable"))
        if new is chain:
            return history
        return self._task.copy_or_leave(
            place, history, lambda: with_history_of(history, new), notes_before
        )

    def _copy_graph(self, graph: Any, place: str) -> Any:
        notes_before = self._task.notes_count
        changes = {}
        for name, node in graph.nodes.items():
            new = self.copy(node.bound, _join(place, f"nodes.{name}"))
            if new is not node.bound:
                changes[name] = new
        if not changes:
            return graph
        return self._task.copy_or_leave(
            place, graph, lambda: with_chains(graph, changes), notes_before
        )

    def _look_into_runnable(self, runnable: Runnable[Any, Any], place: str) -> None:
        """Note the retrievers and models that a runnable holds which cannot be copied."""
        if callable(getattr(type(runnable), "with_structured_output", None)):
            reason = (
                "it makes its model at each call; make the model once, and put it into the chain"
            )
            self._task.note_left(place, type(runnable).__name__, reason)
        for value in list(vars(runnable).values()):
            if isinstance(value, FUNCTIONS):
                self.copy(value, place)
            else:
                reason = f"{type(runnable).__name__} holds it, which accelerate cannot copy"
                self._look_into([value], place, reason)

    def _look_into(self, parts: Iterable[object], place: str, reason: str) -> None:
        """Note the retrievers and models among these parts, and in the chains among them, as left."""
        for part in parts:
            if not isinstance(part, _LOOKED_INTO) or id(part) in self._looked_at:
                continue
            self._looked_at.add(id(part))
            trial = AccelerationTask(self._rules)
            copier = ChainCopier(trial)
            copier._looked_at = self._looked_at
            copier.copy(part)
            self._task.note_inside(trial.report(), place, reason)


def _updated(part: BaseModel, changes: dict[str, Any]) -> BaseModel:
    if isinstance(part, RunnableConfigurableFields) and "default" in changes:
        changes = {**changes, "fields": _configurable_fields(part, changes["default"])}
    twin = part.model_copy(update=changes)
    for name in [name for name in vars(twin) if name not in type(twin).model_fields]:
        if isinstance(getattr(type(twin), name, None), cached_property):
            del twin.__dict__[name]  # computed from the original's fields
    return twin


def _configurable_fields(part: RunnableConfigurableFields[Any, Any], new: Any) -> dict[str, Any]:
    fields = rename_options(part.fields)
    if unknown := fields.keys() - type(new).model_fields.keys():
        raise LookupError(f"{type(new).__name__} has no {', '.join(sorted(unknown))} to configure")
    return fields


def _fields_of(part: BaseModel) -> dict[str, Any]:
    names = (name for name in type(part).model_fields if name not in _SETTINGS)
    return {name: part.__dict__[name] for name in names if name in part.__dict__}


def _holds_ours(part: Any) -> bool:
    if isinstance(part, EngineRetriever):
        return True
    if isinstance(part, BaseModel) and not isinstance(part, _NO_PARTS):
        return any(map(_holds_ours, _fields_of(part).values()))
    if isinstance(part, Mapping):
        return any(map(_holds_ours, part.values()))
    return isinstance(part, (list, tuple)) and any(map(_holds_ours, part))


def _join(place: str, name: object) -> str:
    shown = str(name).rstrip("_")
    return f"{place}.{shown}" if place else shown


def _name(function: Any) -> str:
    named = getattr(function, "func", function)
    return getattr(named, "__name__", type(named).__name__)
