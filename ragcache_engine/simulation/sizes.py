"""The sizes of the simulated tiers."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_engine.knowledge import Tier

NOMINAL_TOKEN_BYTES = 23_040
"""Bytes of one token's key-value tensors if no model sets them. As for SmolLM2-135M in bfloat16: 30
layers x 2 (keys, values) x 3 heads x 64 numbers x 2 bytes.
"""


@dataclass(frozen=True, slots=True)
class TierSizes:
    """How many blocks each tier holds. host_blocks, disk_blocks: 0 for no such tier.

    token_bytes: the bytes of one token's tensors; they decide how long copies take.
    host_quota_blocks, disk_quota_blocks: how many of them one tenant may have; None: any.
    """

    block_tokens: int
    device_blocks: int
    host_blocks: int = 0
    disk_blocks: int = 0
    token_bytes: int = NOMINAL_TOKEN_BYTES
    host_quota_blocks: int | None = None
    disk_quota_blocks: int | None = None

    @property
    def quotas(self) -> dict[Tier, int]:
        """The blocks that one tenant may have of each tier, where that is limited."""
        quotas = {Tier.HOST: self.host_quota_blocks, Tier.DISK: self.disk_quota_blocks}
        return {tier: blocks for tier, blocks in quotas.items() if blocks is not None}

    def __post_init__(self) -> None:
        if min(self.block_tokens, self.device_blocks, self.token_bytes) < 1:
            raise ValueError(
                "block_tokens, device_blocks and token_bytes are at least 1, got "
                f"{self.block_tokens}, {self.device_blocks} and {self.token_bytes}"
            )
        if min(self.host_blocks, self.disk_blocks) < 0:
            raise ValueError(
                "host_blocks and disk_blocks are 0 or more, got "
                f"{self.host_blocks} and {self.disk_blocks}"
            )
        if self.disk_blocks and not self.host_blocks:
            raise ValueError("blocks travel to the disk through the host: give host_blocks as well")

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.token_bytes

    @property
    def device_tokens(self) -> int:
        return self.block_tokens * self.device_blocks
