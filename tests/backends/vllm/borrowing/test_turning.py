"""Keys are turned as if they had been computed at their new positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from ragcache_engine.backends.vllm.borrowing.turning import (  # noqa: E402
    KeyTurner,
    UnsupportedRotation,
)

pytestmark = pytest.mark.vllm

HEAD, POSITIONS = 16, 500


def rotary(*, is_neox_style: bool = True, scale: float = 1.0, turned: int = HEAD) -> Any:
    """Return the parts of vLLM's rotary embedding that are read."""
    frequencies = 1 / 10_000 ** (torch.arange(0, HEAD, 2) / HEAD)
    angles = torch.arange(POSITIONS)[:, None] * frequencies
    table = torch.cat((angles.cos(), angles.sin()), dim=-1) * scale
    return SimpleNamespace(
        rotary_dim=turned,
        head_size=HEAD,
        is_neox_style=is_neox_style,
        cos_sin_cache=table,
        _compute_cos_sin_cache=lambda: table,
    )


def computed_at(keys: torch.Tensor, positions: torch.Tensor, made: Any) -> torch.Tensor:
    """Turn keys from nowhere to their positions, pair by pair, as complex numbers."""
    cos, sin = made.cos_sin_cache[positions].double().chunk(2, dim=-1)
    if made.is_neox_style:
        pairs = torch.stack(keys.double().chunk(2, dim=-1), dim=-1)
    else:
        pairs = keys.double().unflatten(-1, (-1, 2))
    turned = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)[:, None]
    parts = torch.view_as_real(turned)
    found = parts.transpose(-1, -2).flatten(-2) if made.is_neox_style else parts.flatten(-2)
    return found.float()


@pytest.mark.parametrize("is_neox_style", [True, False])
def test_a_turned_key_is_the_one_of_its_new_position(is_neox_style: bool):
    made = rotary(is_neox_style=is_neox_style)
    turner = KeyTurner(made)
    dice = torch.Generator().manual_seed(1)
    keys = torch.randn(40, 3, HEAD, generator=dice)
    old, new = torch.randint(0, POSITIONS, (2, 40), generator=dice)
    turned = turner.turn(computed_at(keys, old, made), turner.plan(old, new))
    assert torch.allclose(turned, computed_at(keys, new, made), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_key_that_stays_does_not_change(dtype: torch.dtype):
    turner = KeyTurner(rotary())
    keys = torch.randn(POSITIONS, 2, HEAD).to(dtype)
    at = torch.arange(POSITIONS)
    assert torch.equal(turner.turn(keys, turner.plan(at, at)), keys)


def test_a_key_is_turned_in_the_same_way_whatever_is_turned_with_it():
    turner = KeyTurner(rotary())
    keys = torch.randn(37, 3, HEAD)
    old, new = torch.arange(37) * 3, torch.arange(37) * 11
    together = turner.turn(keys, turner.plan(old, new))
    for at in range(37):
        alone = turner.turn(keys[at : at + 1], turner.plan(old[at : at + 1], new[at : at + 1]))
        assert torch.equal(alone[0], together[at])


@pytest.mark.parametrize(
    ("made", "why"),
    [(rotary(turned=8), "a part of each head"), (rotary(scale=1.2), "scales its keys")],
)
def test_other_rotations_are_refused(made: Any, why: str):
    with pytest.raises(UnsupportedRotation, match=why):
        KeyTurner(made)
