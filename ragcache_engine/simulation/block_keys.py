"""The keys of blocks: a hash over all tokens up to the block's end, chained from block to block.

Equal keys mean equal prefixes of one tenant, as with vLLM's block hashes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

from ragcache_engine.tiers.node_record import Key

KEY_BYTES = 16


class KeyChain:
    """The keys of a growing run of tokens.

    keys: one for each full block so far, in order. tenant: the tenant whose tokens these are; runs with
      None share keys with each other.
    """

    def __init__(self, block_tokens: int, tenant: str | None = None) -> None:
        self.keys: list[Key] = []
        self._block_tokens = block_tokens
        self._reached = b"" if tenant is None else _digest(f"tenant {tenant}".encode())
        self._rest = array("q")  # tokens after the last full block

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens, and add the keys of the blocks that they fill."""
        rest, size = self._rest, self._block_tokens
        rest.extend(token_ids)
        full = len(rest) // size
        for block in range(full):
            tokens = rest[block * size : (block + 1) * size].tobytes()
            self._reached = _digest(self._reached + tokens)
            self.keys.append(self._reached)
        del rest[: full * size]

    def split(self, digest: bytes) -> None:
        """Give all later blocks keys that no run has unless it was split here by the same digest."""
        self._reached = _digest(self._reached + digest)


def _digest(content: bytes) -> Key:
    return blake2b(content, digest_size=KEY_BYTES).digest()
