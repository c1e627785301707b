"""Any block that is cut into tiles is read and written as a strided array."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from ragcache_engine.backends.vllm.borrowing.block_layout import (  # noqa: E402
    BlockLayout,
    UnknownLayout,
    arrange,
)

pytestmark = pytest.mark.vllm

TOKENS, NUMBERS, BLOCKS = 16, 24, 5
TILED = [2, 4, 2, 2, 3, 4]  # the first three make the tokens, the others the numbers


def tiles(order: list[int], offset: int, gap: int) -> torch.Tensor:
    """Return places of a block whose dimensions lie in this order in memory, with room between them."""
    strides, step = [0] * len(TILED), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step = step * TILED[dimension] + gap
    places = torch.full((1,), offset)
    for size, stride in zip(TILED, strides, strict=True):
        places = (places[:, None] + stride * torch.arange(size)).flatten()
    return places.reshape(TOKENS, NUMBERS)


orders = st.permutations(range(len(TILED)))


@given(orders, st.integers(0, 7), st.integers(0, 3), st.integers(0, 2**31))
def test_what_is_read_is_what_lies_at_these_places(
    order: list[int], offset: int, gap: int, seed: int
):
    places = tiles(order, offset, gap)
    stride = int(places.max()) + 3
    dice = torch.Generator().manual_seed(seed)
    cache = torch.randn(BLOCKS, stride, generator=dice)
    slots = torch.randint(0, BLOCKS * TOKENS, (9,), generator=dice)
    found = arrange(places)
    read = found.view(cache)[found.index(slots)].reshape(9, NUMBERS)
    assert torch.equal(
        read, cache.flatten()[places[slots % TOKENS] + (slots // TOKENS * stride)[:, None]]
    )


@given(orders, orders, st.integers(0, 2**31))
def test_a_copy_changes_its_slots_alone(keys: list[int], values: list[int], seed: int):
    of_keys = tiles(keys, 0, 0)
    layout = BlockLayout(
        arrange(of_keys), arrange(tiles(values, int(of_keys.max()) + 1, 0)), TOKENS
    )
    dice = torch.Generator().manual_seed(seed)
    cache = torch.randn(BLOCKS, 2 * TOKENS * NUMBERS, generator=dice)
    before = cache.clone()
    slots = torch.randperm(BLOCKS * TOKENS, generator=dice)
    sources, targets = slots[:6], slots[6:12]
    for part in (layout.keys, layout.values):
        view = part.view(cache)
        view[part.index(targets)] = view[part.index(sources)]
    every = torch.arange(BLOCKS * TOKENS)
    came_from = every.clone()
    came_from[targets] = sources
    for part in (layout.keys, layout.values):
        assert torch.equal(
            part.view(cache)[part.index(every)], part.view(before)[part.index(came_from)]
        )


@pytest.mark.parametrize("head_size", [64, 80, 96, 112])
@pytest.mark.parametrize("is_turned", [True, False])
def test_heads_of_any_size_lie_apart(head_size: int, is_turned: bool):
    heads, tokens = 3, 32
    of_token, of_number = (1, tokens) if is_turned else (head_size, 1)  # AVX turns keys, not values
    places = (
        torch.arange(tokens)[:, None, None] * of_token
        + torch.arange(heads)[:, None] * 2 * head_size * tokens
        + torch.arange(head_size) * of_number
    ).flatten(1)
    found = arrange(places)
    assert found.number_sizes == (heads, head_size)
    assert found.number_strides == (2 * head_size * tokens, of_number)


def test_tokens_one_after_the_other_take_one_dimension_for_all_numbers():
    found = arrange(torch.arange(TOKENS * NUMBERS).reshape(TOKENS, NUMBERS))
    assert (found.token_sizes, found.token_strides) == ((TOKENS,), (NUMBERS,))
    assert (found.number_sizes, found.number_strides) == ((NUMBERS,), (1,))


def test_a_block_in_a_form_of_its_own_is_refused():
    places = torch.arange(TOKENS * NUMBERS).reshape(TOKENS, NUMBERS)
    swapped = places.clone()
    swapped[3, 4], swapped[3, 5] = places[3, 5], places[3, 4]
    with pytest.raises(UnknownLayout, match="depends on the token"):
        arrange(swapped)
    with pytest.raises(UnknownLayout, match="tiles of an unknown kind"):
        arrange(places[:, torch.randperm(NUMBERS, generator=torch.Generator().manual_seed(1))])
