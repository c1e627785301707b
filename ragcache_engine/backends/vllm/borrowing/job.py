"""What the scheduler tells each worker to carry out for one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)


class BlockCopy(NamedTuple):
    """Copy the tensors of `tokens` tokens from a donor into the request's blocks.

    donor_blocks: the donor's blocks on the device, in order. source, target: the first position in the
      donor, and in the request. packed_first: the position of a packed donor's first token where it was
      computed, from which `source` counts then; None for a donor that is not packed.
    """

    donor_blocks: list[int]
    source: int
    target: int
    tokens: int
    packed_first: int | None = None


@dataclass(slots=True)
class BorrowJob:
    """Fill the blocks of one request before its prompt is computed.

    name: the request's. blocks: its blocks on the device, in order. recomputed: positions to compute
    anew after the copies, rising. token_ids: the tokens at these positions.
    """

    name: str
    blocks: list[int]
    copies: list[BlockCopy]
    recomputed: list[int]
    token_ids: list[int]


class PackJob(NamedTuple):
    """Pack tokens of a donor into blocks of a packed one.

    blocks: those to fill. donor_blocks: the donor's blocks on the device, in order. start: its first
      token to pack. tokens: how many.
    """

    blocks: list[int]
    donor_blocks: list[int]
    start: int
    tokens: int


@dataclass
class TierMetadata(OffloadingConnectorMetadata):
    """What a step's scheduling tells the workers: copies of the host tier, what to borrow and to pack."""

    borrow_jobs: list[BorrowJob] = field(default_factory=list)
    pack_jobs: list[PackJob] = field(default_factory=list)
