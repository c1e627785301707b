"""Computes scattered tokens of prompts anew, with the model's own forward.

Each run of neighbouring tokens [start, end) becomes a *virtual sequence*: end - start tokens to compute
of a sequence of `end` tokens, over the block table of its request. In every layer vLLM writes the keys
and values of all sequences before it attends, so each token sees the fresh tensors of those before it,
and the copied ones of all others: CacheBlend's and Cache-Craft's merge, in vLLM's own kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.attention.backend import CommonAttentionMetadata

from ragcache_engine.backends.vllm.borrowing.block_layout import (
    UnknownLayout,
    cut_blocks,
    find_slots,
)
from ragcache_engine.backends.vllm.borrowing.job import BorrowJob


@dataclass(slots=True)
class VirtualSequence:
    """Neighbouring tokens of one request. blocks: the request's. start: the first token's position."""

    blocks: Sequence[int]
    start: int
    token_ids: list[int]

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.token_ids)


class Recomputer:
    """Runs virtual sequences through the model.

    layers: vLLM's Attention modules by name. kernel_tokens: tokens in a block of the attention kernel.
    Raises UnknownLayout if the requests' blocks are no multiple of those.
    """

    def __init__(
        self,
        config: VllmConfig,
        model: torch.nn.Module,
        layers: dict[str, Any],
        kernel_tokens: int,
        device: torch.device,
    ) -> None:
        self._config = config
        self._model = model
        self._names = list(layers)
        self._block_tokens = config.cache_config.block_size
        self._parts, rest = divmod(self._block_tokens, kernel_tokens)
        if rest or not self._parts:
            raise UnknownLayout(
                f"the attention kernel's blocks of {kernel_tokens} tokens do not fill blocks of "
                f"{self._block_tokens}"
            )
        self._device = device
        self._most_tokens = config.scheduler_config.max_num_batched_tokens
        self._most_sequences = config.scheduler_config.max_num_seqs
        first = next(iter(layers.values()))
        # An instance of our own: the runner's has prepared the step that follows.
        spec = first.get_kv_cache_spec(config).copy_with_new_block_size(kernel_tokens)
        self._builder = first.get_attn_backend().get_builder_cls()(
            spec, self._names, config, device
        )

    def recompute(self, jobs: Sequence[BorrowJob]) -> None:
        """Compute the tokens of all jobs anew, in rising order within each job."""
        sequences = [sequence for job in jobs for sequence in split_runs(job)]
        for batch in _batches(sequences, self._most_tokens, self._most_sequences):
            self._run(batch)

    def _run(self, batch: Sequence[VirtualSequence]) -> None:
        device = self._device
        lengths = [len(sequence.token_ids) for sequence in batch]
        starts = torch.zeros(len(batch) + 1, dtype=torch.int32)
        starts[1:] = torch.tensor(lengths).cumsum(0)
        ends = torch.tensor([sequence.end for sequence in batch], dtype=torch.int32)
        positions = torch.cat([torch.arange(each.start, each.end) for each in batch])
        slots = torch.cat(
            [
                find_slots(each.blocks, each.start, len(each.token_ids), self._block_tokens)
                for each in batch
            ]
        )
        # int32, as the runner's: compiled models misread anything else.
        tokens = torch.tensor(
            [token for each in batch for token in each.token_ids], dtype=torch.int32
        )
        widest = max(len(sequence.blocks) for sequence in batch) * self._parts
        table = torch.zeros((len(batch), widest), dtype=torch.int32)
        for row, sequence in enumerate(batch):
            blocks = cut_blocks(sequence.blocks, self._parts)
            table[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        slots = async_tensor_h2d(slots, device)
        positions = async_tensor_h2d(positions, device)
        metadata = self._builder.build(
            0,
            CommonAttentionMetadata(
                query_start_loc=async_tensor_h2d(starts, device),
                query_start_loc_cpu=starts,
                seq_lens=async_tensor_h2d(ends, device),
                seq_lens_cpu_upper_bound=ends,  # without it FlashInfer would wait for the device
                num_reqs=len(batch),
                num_actual_tokens=len(tokens),
                max_query_len=max(lengths),
                max_seq_len=int(ends.max()),
                block_table_tensor=async_tensor_h2d(table, device),
                slot_mapping=slots,
                positions=positions,
            ),
        )
        with (
            torch.inference_mode(),
            set_forward_context(
                dict.fromkeys(self._names, metadata),
                self._config,
                num_tokens=len(tokens),
                slot_mapping=dict.fromkeys(self._names, slots),
            ),
        ):
            self._model(
                input_ids=async_tensor_h2d(tokens, device),
                positions=positions,
                intermediate_tensors=None,
                inputs_embeds=None,
            )


def split_runs(job: BorrowJob) -> Iterator[VirtualSequence]:
    """Cut a job's recomputed positions into runs of neighbours."""
    first = 0
    positions = job.recomputed
    for at in range(1, len(positions) + 1):
        if at == len(positions) or positions[at] != positions[at - 1] + 1:
            if at > first:
                yield VirtualSequence(job.blocks, positions[first], job.token_ids[first:at])
            first = at


def _batches(
    sequences: Sequence[VirtualSequence], most_tokens: int, most_sequences: int
) -> Iterator[list[VirtualSequence]]:
    """Group sequences, in their order, into passes; cut those that are longer than one pass."""
    batch: list[VirtualSequence] = []
    left = most_tokens
    for sequence in sequences:
        start = sequence.start
        while start < sequence.end:
            if not left or len(batch) == most_sequences:
                yield batch
                batch, left = [], most_tokens
            end = min(sequence.end, start + left)
            offset = start - sequence.start
            tokens = sequence.token_ids[offset : offset + end - start]
            batch.append(VirtualSequence(sequence.blocks, start, tokens))
            left -= end - start
            start = end
    if batch:
        yield batch
