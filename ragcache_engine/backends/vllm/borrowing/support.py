"""Tells, before anything starts, why an engine cannot borrow documents from other contexts.

Borrowing copies a token's key and value as plain numbers, turns the key by a rotation of its whole head,
and recomputes with the model's own attention over all earlier tokens. What keeps other states, attends in
another way, or turns keys in a way that tests have never run, cannot borrow. The worker looks once more
at the running model (turning.py, block_layout.py), for what a configuration does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.config import ModelConfig, VllmConfig

from ragcache_engine.backends.vllm.untried import find_untried
from ragcache_engine.errors import CannotBorrow

ROPE_TYPES = ("default", "llama3", "linear")
"""Kinds of rotary positions that tests have run; see turning.SUPPORTED."""

PLAIN_CACHES = ("auto", "float16", "bfloat16", "float32")
"""Data types of caches that keep keys and values as they are, one number each."""

OTHER_ATTENTION = {
    "attention_chunk_size": "attends within chunks of its context",
    "dual_chunk_attention_config": "attends to chunks of its context in two ways",
}
"""Fields of a model's configuration, and what they mean if they are set."""


def require_borrowable_model(model: ModelConfig) -> None:
    """Raise CannotBorrow if no engine can borrow with this model."""
    reason = _find_other_states(model) or _find_other_positions(model)
    if reason:
        raise _refuse(f"the model {reason}")


def require_borrowable_engine(config: VllmConfig, worker: str) -> None:
    """Raise CannotBorrow if this configuration of vLLM leaves out a part that borrowing needs.

    worker: the class of worker that carries borrowing out.
    """
    parallel, cache = config.parallel_config, config.cache_config
    if untried := find_untried(config):
        raise _refuse(f"it was never tried with {untried}")
    if cache.cache_dtype not in PLAIN_CACHES:
        raise _refuse(
            f"a cache in {cache.cache_dtype} does not keep keys as they are; leave kv_cache_dtype out"
        )
    if not cache.enable_prefix_caching:
        raise _refuse(
            "documents are found by vLLM's prefix caching; leave enable_prefix_caching on"
        )
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector != "TierConnector":
        raise _refuse("it needs the knowledge tree; leave scheduler_cls and kv_transfer_config out")
    if parallel.worker_cls != worker:
        raise _refuse(f"it needs a worker of its own; leave worker_cls={parallel.worker_cls!r} out")


def _find_other_states(model: ModelConfig) -> str | None:
    """Return what the model keeps instead of one key and value for each earlier token."""
    text = model.hf_text_config
    if model.is_hybrid or model.is_attention_free:
        return "keeps states that are no key-value tensors (Mamba or another hybrid)"
    if model.is_encoder_decoder:
        return "is an encoder and decoder"
    if model.use_mla:
        return "keeps latent vectors for keys and values (multi-head latent attention, MLA)"
    layer_types: Sequence[str] = getattr(text, "layer_types", None) or ()
    if model.get_sliding_window() or "sliding_attention" in layer_types:
        return "attends through a sliding window"
    for field, meaning in OTHER_ATTENTION.items():
        if getattr(text, field, None):
            return f"{meaning} ({field})"
    return None


def _find_other_positions(model: ModelConfig) -> str | None:
    """Return how the model's positions differ from plain rotations of whole heads."""
    if model.uses_mrope:
        return "counts positions in several dimensions (mrope)"
    if model.using_transformers_backend():
        return "runs in code of transformers, which hides how it turns its keys"
    given = getattr(model.hf_text_config, "rope_parameters", None)
    if not given:
        return "has no rotary positions that its configuration tells of"
    kinds = [one for one in given.values() if isinstance(one, Mapping)] or [given]
    if any(kind != kinds[0] for kind in kinds):
        return "turns the keys of its layers in different ways"
    return _find_unknown_rotation(kinds[0])


def _find_unknown_rotation(rope: Mapping[str, Any]) -> str | None:
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        return f"has rotary positions of the kind {kind!r}, which were never tried"
    if rope.get("use_fope"):
        return "has rotary positions of the kind 'fope', which were never tried"
    if rope.get("rope_dim") or (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        return "turns only a part of each head (partial rotary positions)"
    return None


def _refuse(reason: str) -> CannotBorrow:
    return CannotBorrow(f'reuse="anywhere" does not work here: {reason}. Set reuse="prefix"')
