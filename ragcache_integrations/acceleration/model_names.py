"""Whether a model of a framework is the model that the engine runs."""

from __future__ import annotations

from typing import Any

from ragcache_engine import EngineConfig

_NAME_ATTRIBUTES = ("model_name", "model_id", "model", "model_path", "repo_id")
_NO_NAMES = (EngineConfig.model_fields["model"].default, "any")


def find_model_name(model: Any) -> str | None:
    """Return the name under which a model object asks for its model; None if it names none."""
    for attribute in _NAME_ATTRIBUTES:
        name = getattr(model, attribute, None)
        if isinstance(name, str) and name:
            return name
    return None


def is_model_of(config: EngineConfig, name: str) -> bool:
    """Tell whether the name means the engine's model.

    The last part of a name or path counts, in any case: "Qwen/Qwen2.5-7B" is "/models/qwen2.5-7b". An
    engine without a model (backend="memory") stands for the model that its configuration names, and for
    any model if it names none.
    """
    served = config.vllm_args.get("served_model_name") or ()
    known = [
        config.model,
        config.model_name,
        *([served] if isinstance(served, str) else served),
    ]
    is_any = config.backend == "memory" and config.model_name in _NO_NAMES
    return is_any or _last_part(name) in map(_last_part, known)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
