"""How the frameworks' models on an engine show themselves: the engine, and what differs from defaults."""

from __future__ import annotations

from ragcache_engine import RAGCacheEngine
from ragcache_integrations.sampling import SamplingFields

_ALSO_SHOWN = ("tenant", "exact")


def describe_model(model: SamplingFields, engine: RAGCacheEngine) -> str:
    """Return one short line about a model. Nothing of the framework's own fields is in it."""
    fields = type(model).model_fields
    changed = [
        f"{name}={getattr(model, name)!r}"
        for name in (*SamplingFields.model_fields, *_ALSO_SHOWN)
        if getattr(model, name) != fields[name].default
    ]
    return f"{type(model).__name__}({', '.join([repr(engine), *changed])})"
