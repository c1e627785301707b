"""Turns keys from the position they were computed at to another one.

A rotary embedding turns pairs of a key's numbers by angles that grow with the position. Angles add up,
so a key computed at one position is turned to another by the difference, in float32, at any distance.
Source: RoFormer (arXiv:2104.09864), equation 14.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding


class UnsupportedRotation(Exception):
    """The model's positions are not plain rotations of the whole head."""


class KeyTurner:
    """Turns keys of one model. rotary: one of its rotary embeddings; all layers share the same angles."""

    def __init__(self, rotary: RotaryEmbedding) -> None:
        if rotary.rotary_dim != rotary.head_size:
            raise UnsupportedRotation("the model turns only a part of each head")
        # Private to vLLM: the public buffer is rounded to the model's data type, and a rounded angle
        # turns keys by a wrong amount. tests/backends/vllm/borrowing notice when it moves.
        table = rotary._compute_cos_sin_cache().float()
        cos, sin = table.chunk(2, dim=-1)
        if not torch.allclose(cos**2 + sin**2, torch.ones_like(cos), atol=1e-4):
            raise UnsupportedRotation("the model scales its keys while it turns them")
        device = rotary.cos_sin_cache.device
        self._cos, self._sin = cos.to(device), sin.to(device)
        self._is_neox = rotary.is_neox_style

    def plan(self, old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and sine of the angles from old positions to new ones, for `turn`.

        old, new: int64, shape (n,). Returns two of float32, shape (n, 1, head_size); the sine has the
        sign with which the other number of a pair counts.
        """
        cos_old, sin_old = self._cos[old], self._sin[old]
        cos_new, sin_new = self._cos[new], self._sin[new]
        cos = cos_new * cos_old + sin_new * sin_old
        sin = sin_new * cos_old - cos_new * sin_old
        stays = (old == new)[:, None]  # such keys do not change by rounding either
        cos, sin = cos.masked_fill(stays, 1.0), sin.masked_fill(stays, 0.0)
        return self._join(cos, cos)[:, None], self._join(-sin, sin)[:, None]

    def turn(self, keys: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the keys at their new positions. keys: shape (n, kv_heads, head_size), any type."""
        cos, sin = angles
        wide = keys.float()
        if self._is_neox:
            first, second = wide.chunk(2, dim=-1)
        else:
            first, second = wide[..., ::2], wide[..., 1::2]
        # Multiplied and added one after the other: one kernel for both might round the last elements of
        # a tensor in another way, and an answer would depend on its company.
        turned = self._join(second, first).mul_(sin).add_(wide * cos)
        return turned.to(keys.dtype)

    def _join(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return numbers, of which these are the first and the second of each pair."""
        if self._is_neox:
            return torch.cat((first, second), dim=-1)
        return torch.stack((first, second), dim=-1).flatten(-2)


def find_rotary(model: torch.nn.Module) -> RotaryEmbedding:
    """Return the model's rotary embedding; all layers share one kind. Raises UnsupportedRotation."""
    found = [module for module in model.modules() if isinstance(module, RotaryEmbedding)]
    kinds = {type(module) for module in found}
    if not found:
        raise UnsupportedRotation("the model has no rotary embedding")
    if len(kinds) > 1 or len({_angles(module) for module in found}) > 1:
        raise UnsupportedRotation("layers of the model turn their keys in different ways")
    kind = type(found[0])
    if kind.__name__ not in SUPPORTED:
        raise UnsupportedRotation(f"positions of the kind {kind.__name__} were never tried")
    return found[0]


SUPPORTED = ("RotaryEmbedding", "Llama3RotaryEmbedding", "LinearScalingRotaryEmbedding")
"""The kinds of rotary embeddings whose angles add up, and that tests have run."""


def _angles(rotary: RotaryEmbedding) -> tuple[object, ...]:
    return rotary.head_size, rotary.rotary_dim, rotary.base, rotary.is_neox_style
