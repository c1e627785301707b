"""Carries out borrowing in a worker: copies tensors between blocks, turns the keys, recomputes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.torch_utils import async_tensor_h2d

from ragcache_engine.backends.vllm.borrowing.block_layout import (
    UnknownLayout,
    find_slots,
    probe_layout,
)
from ragcache_engine.backends.vllm.borrowing.job import BlockCopy, BorrowJob, PackJob
from ragcache_engine.backends.vllm.borrowing.packing import (
    count_groups,
    number_bytes,
    pack_numbers,
    unpack_numbers,
)
from ragcache_engine.backends.vllm.borrowing.recomputing import Recomputer
from ragcache_engine.backends.vllm.borrowing.turning import KeyTurner, find_rotary
from ragcache_engine.tiers.borrowing.donor import Packing


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
        self._device, self._dtype = cache.device, cache.dtype
        self._block_tokens = config.cache_config.block_size
        if cache.element_size() != number_bytes(config):
            raise UnknownLayout(
                f"the cache holds {cache.dtype}, and its configuration says otherwise"
            )
        self._packing = Packing(self._block_tokens, cache.element_size())
        self._recomputer = Recomputer(config, model, layers, layout.block_tokens, cache.device)

    def carry_out(self, jobs: Sequence[BorrowJob]) -> None:
        """Copy and recompute for all these requests."""
        copies = [(job, copy) for job in jobs for copy in job.copies]
        self._copy([each for each in copies if each[1].packed_first is None])
        self._copy_packed([each for each in copies if each[1].packed_first is not None])
        self._recomputer.recompute(jobs)

    def require_packable(self) -> None:
        """Raise UnknownLayout if donors cannot be packed into blocks of this size."""
        if count_groups(self._packing.tokens) > self._head_size:
            raise UnknownLayout(
                f"blocks of {self._block_tokens} tokens are too large for donors in int8: their scales "
                f'do not fit beside them. Set a smaller block_size, or donor_dtype="auto"'
            )

    def clear(self, jobs: Sequence[PackJob]) -> None:
        """Fill blocks with 0 that `pack` is to fill.

        The step computes a token behind each packed donor, and what that token attends to must be finite.
        """
        if not jobs:
            return
        blocks = [block for job in jobs for block in job.blocks]
        keys_at, values_at, _ = self._whole_blocks(blocks)
        for keys, values in self._views:
            keys[keys_at] = 0
            values[values_at] = 0

    def pack(self, jobs: Sequence[PackJob]) -> None:
        """Fill blocks with packed tokens, once the step that computes with them is done."""
        size, layout, device = self._block_tokens, self._layout, self._device
        for job in jobs:
            slots = find_slots(job.donor_blocks, job.start, job.tokens, size)
            slots = async_tensor_h2d(slots, device)
            from_keys, from_values = layout.keys.index(slots), layout.values.index(slots)
            keys_at, values_at, form = self._whole_blocks(job.blocks)
            numbers = (job.tokens, self._heads, self._head_size)
            for keys, values in self._views:
                for cache, source, target in (
                    (keys, from_keys, keys_at),
                    (values, from_values, values_at),
                ):
                    wide = cache[source].reshape(numbers).float()
                    packed = pack_numbers(wide, self._dtype, size)
                    cache[target] = packed.reshape(form, *cache.shape[len(target) :])

    def _whole_blocks(
        self, blocks: Sequence[int]
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], int]:
        """Return where all tokens of blocks are among the keys and the values, and how many there are."""
        tokens = len(blocks) * self._block_tokens
        slots = async_tensor_h2d(find_slots(blocks, 0, tokens, self._block_tokens), self._device)
        return self._layout.keys.index(slots), self._layout.values.index(slots), tokens

    def _copy_packed(self, copies: Sequence[tuple[BorrowJob, BlockCopy]]) -> None:
        if not copies:
            return
        size, device, layout = self._block_tokens, self._device, self._layout
        blocks = [block for _, copy in copies for block in copy.donor_blocks]
        begins = accumulate((len(copy.donor_blocks) for _, copy in copies), initial=0)
        places = torch.cat(
            [
                torch.arange(copy.source, copy.source + copy.tokens) + begin * self._packing.tokens
                for (_, copy), begin in zip(copies, begins, strict=False)
            ]
        )
        old = torch.cat(
            [
                torch.arange(copy.source, copy.source + copy.tokens) + (copy.packed_first or 0)
                for _, copy in copies
            ]
        )
        new = torch.cat([torch.arange(c.target, c.target + c.tokens) for _, c in copies])
        targets = torch.cat([find_slots(job.blocks, c.target, c.tokens, size) for job, c in copies])
        targets, places = async_tensor_h2d(targets, device), async_tensor_h2d(places, device)
        to_keys, to_values = layout.keys.index(targets), layout.values.index(targets)
        keys_at, values_at, _ = self._whole_blocks(blocks)
        angles = self._turner.plan(async_tensor_h2d(old, device), async_tensor_h2d(new, device))
        form = (len(blocks), size, self._heads, self._head_size)
        for keys, values in self._views:
            lent = unpack_numbers(keys[keys_at].reshape(form), places)
            turned = self._turner.turn(lent, angles).to(self._dtype)
            keys[to_keys] = turned.reshape(len(places), *keys.shape[len(to_keys) :])
            lent = unpack_numbers(values[values_at].reshape(form), places).to(self._dtype)
            values[to_values] = lent.reshape(len(places), *values.shape[len(to_values) :])

    def _copy(self, copies: Sequence[tuple[BorrowJob, BlockCopy]]) -> None:
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
