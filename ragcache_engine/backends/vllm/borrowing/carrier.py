"""Carries out borrowing in a worker: copies tensors between blocks, turns the keys, recomputes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.torch_utils import async_tensor_h2d

from ragcache_engine.backends.vllm.borrowing.block_layout import (
    find_slots,
    probe_layout,
)
from ragcache_engine.backends.vllm.borrowing.job import BorrowJob
from ragcache_engine.backends.vllm.borrowing.recomputing import Recomputer
from ragcache_engine.backends.vllm.borrowing.turning import KeyTurner, find_rotary


class BorrowCarrier:
    """Fills the blocks of requests that borrow, before vLLM computes the rest of their prompts.

    On a GPU all of it runs on the stream of the step that follows, behind the step before: donors are
    written when they are read, and what is copied is there when the step reads it. Nothing waits for
    the device, so that the worker may prepare the next step meanwhile.
    caches: each layer's cache, by the layer's name.
    Raises UnsupportedRotation or UnknownLayout.
    """

    def __init__(
        self, config: VllmConfig, model: torch.nn.Module, caches: dict[str, torch.Tensor]
    ) -> None:
        layers = {name: config.compilation_config.static_forward_context[name] for name in caches}
        first: Any = next(iter(layers.values()))
        cache = next(iter(caches.values()))
        self._heads, self._head_size = first.num_kv_heads, first.head_size
        self._turner = KeyTurner(find_rotary(model))
        self._layout = layout = probe_layout(first, cache, self._heads, self._head_size)
        self._views = [
            (layout.keys.view(each), layout.values.view(each)) for each in caches.values()
        ]
        self._device = cache.device
        self._block_tokens = config.cache_config.block_size
        self._recomputer = Recomputer(config, model, layers, layout.block_tokens, cache.device)

    def carry_out(self, jobs: Sequence[BorrowJob]) -> None:
        """Copy and recompute for all these requests."""
        self._copy(jobs)
        self._recomputer.recompute(jobs)

    def _copy(self, jobs: Sequence[BorrowJob]) -> None:
        copies = [(job, copy) for job in jobs for copy in job.copies]
        if not copies:
            return
        old = torch.cat([torch.arange(c.source, c.source + c.tokens) for _, c in copies])
        new = torch.cat([torch.arange(c.target, c.target + c.tokens) for _, c in copies])
        size = self._block_tokens
        sources = torch.cat(
            [find_slots(c.donor_blocks, c.source, c.tokens, size) for _, c in copies]
        )
        targets = torch.cat([find_slots(job.blocks, c.target, c.tokens, size) for job, c in copies])
        device, layout = self._device, self._layout
        sources = async_tensor_h2d(sources, device)
        targets = async_tensor_h2d(targets, device)
        from_keys, to_keys = layout.keys.index(sources), layout.keys.index(targets)
        from_values, to_values = layout.values.index(sources), layout.values.index(targets)
        angles = self._turner.plan(async_tensor_h2d(old, device), async_tensor_h2d(new, device))
        form = (len(old), self._heads, self._head_size)
        for keys, values in self._views:
            lent = keys[from_keys]
            keys[to_keys] = self._turner.turn(lent.reshape(form), angles).reshape(lent.shape)
            values[to_values] = values[from_values]
