"""Caches as the attention kernels of a GPU have them: what borrowing reads, writes and recomputes."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from ragcache_engine.backends.vllm.borrowing import recomputing  # noqa: E402
from ragcache_engine.backends.vllm.borrowing.block_layout import (  # noqa: E402
    UnknownLayout,
    cut_blocks,
    find_slots,
    probe_layout,
)
from ragcache_engine.backends.vllm.borrowing.carrier import BorrowCarrier  # noqa: E402
from ragcache_engine.backends.vllm.borrowing.job import (  # noqa: E402
    BlockCopy,
    BorrowJob,
    PackJob,
)
from ragcache_engine.backends.vllm.borrowing.recomputing import Recomputer  # noqa: E402
from ragcache_engine.tiers.borrowing.donor import Packing  # noqa: E402

pytestmark = pytest.mark.vllm

BLOCKS, HEADS, TOKENS, HEAD = 6, 2, 16, 8
LAYERS = 3


def heads_behind_tokens() -> Any:
    """vLLM's NHD: a token's heads lie beside each other."""
    return torch.zeros(BLOCKS, TOKENS, HEADS, 2 * HEAD).transpose(1, 2)


def tokens_behind_heads() -> Any:
    """vLLM's HND: a head's tokens lie beside each other."""
    return torch.zeros(BLOCKS, HEADS, TOKENS, 2 * HEAD)


def layers_within_blocks() -> Any:
    """A packed cache: a block has the tokens of all layers, so a layer's blocks lie apart."""
    return torch.zeros(BLOCKS, LAYERS, TOKENS, HEADS, 2 * HEAD)[:, 1].transpose(1, 2)


class FlashLike:
    """Writes as FlashAttention, Triton and FlashInfer do in vLLM 0.32 and 0.33 (`do_kv_cache_update`).

    Each sees a cache as (blocks, heads, tokens, 2 * head size), wherever its numbers lie.
    """

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        keys, values = cache.transpose(1, 2).split(HEAD, dim=-1)
        at = slots // TOKENS, slots % TOKENS
        keys[at], values[at] = key, value


LAYER = SimpleNamespace(impl=FlashLike())


@pytest.mark.parametrize("make", [heads_behind_tokens, tokens_behind_heads, layers_within_blocks])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_the_kernel_has_written_is_read_back_from_its_slots(make: Any, dtype: Any):
    cache = make().to(dtype)
    layout = probe_layout(LAYER, cache, HEADS, HEAD)
    assert not cache.any(), "probing leaves the cache alone"
    assert layout.block_tokens == TOKENS
    slots = torch.tensor([0, 5, 17, 40, BLOCKS * TOKENS - 1])
    key = torch.randn(len(slots), HEADS, HEAD).to(dtype)
    value = torch.randn(len(slots), HEADS, HEAD).to(dtype)
    LAYER.impl.do_kv_cache_update(LAYER, key, value, cache, slots)
    for part, written in ((layout.keys, key), (layout.values, value)):
        read = part.view(cache)[part.index(slots)]
        assert torch.equal(read.reshape(written.shape), written)


class Still:
    """Turns no key."""

    def plan(self, old: Any, new: Any) -> Any:
        return old, new

    def turn(self, keys: Any, angles: Any) -> Any:
        return keys


@pytest.mark.parametrize("make", [heads_behind_tokens, tokens_behind_heads, layers_within_blocks])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_was_packed_is_lent_within_half_a_step_of_its_scale(make: Any, dtype: Any):
    cache = make().to(dtype)
    layout = probe_layout(LAYER, cache, HEADS, HEAD)
    carrier: Any = BorrowCarrier.__new__(BorrowCarrier)
    carrier._heads, carrier._head_size, carrier._turner = HEADS, HEAD, Still()
    carrier._layout, carrier._device, carrier._dtype = layout, cache.device, dtype
    carrier._views = [(layout.keys.view(cache), layout.values.view(cache))]
    carrier._block_tokens, carrier._packing = TOKENS, Packing(TOKENS, dtype.itemsize)
    slots = find_slots([4, 1], 0, 2 * TOKENS, TOKENS)  # a donor's blocks
    key, value = (torch.randn(2 * TOKENS, HEADS, HEAD).to(dtype) for _ in range(2))
    LAYER.impl.do_kv_cache_update(LAYER, key, value, cache, slots)
    start, tokens = 3, 27
    packing = PackJob(blocks=[5], donor_blocks=[4, 1], start=start, tokens=tokens)
    carrier.pack([packing])
    lent = BlockCopy([5], source=2, target=9, tokens=20, packed_first=start)
    carrier._copy_packed([(BorrowJob("one", [0, 3], [lent], [], []), lent)])
    targets = find_slots([0, 3], 9, 20, TOKENS)
    for part, written in ((layout.keys, key), (layout.values, value)):
        read = part.view(cache)[part.index(targets)].reshape(20, HEADS, HEAD).float()
        expected = written[start + 2 : start + 22].float()
        assert (read - expected).abs().max() < 0.02 * written.float().abs().max()
        donor = part.view(cache)[part.index(slots)].reshape(written.shape)
        assert torch.equal(donor, written), "the donor is as it was"
    carrier.clear([packing])
    packed = find_slots([5], 0, TOKENS, TOKENS)
    for part in (layout.keys, layout.values):
        assert not part.view(cache)[part.index(packed)].any()


class Rounding(FlashLike):
    """Keeps one byte a number, as with kv_cache_dtype="fp8"."""

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        super().do_kv_cache_update(layer, key * 0.5, value, cache, slots)


def test_a_kernel_that_stores_other_numbers_is_refused():
    with pytest.raises(UnknownLayout, match="a form of its own"):
        probe_layout(SimpleNamespace(impl=Rounding()), heads_behind_tokens(), HEADS, HEAD)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    blocks=st.lists(st.integers(0, 99), min_size=1, max_size=6),
    parts=st.integers(1, 4),
    start=st.integers(0, 15),
    count=st.integers(1, 96),
)
def test_slots_are_the_same_in_the_blocks_that_a_kernel_cuts_them_into(
    blocks: list[int], parts: int, start: int, count: int
):
    tokens = parts * TOKENS
    count = min(count, len(blocks) * tokens - start)
    of_requests = find_slots(blocks, start, count, tokens)
    of_the_kernel = find_slots(cut_blocks(blocks, parts), start, count, TOKENS)
    assert torch.equal(of_requests, of_the_kernel)


class Spec:
    """What a layer says of its blocks; the kernel's may be smaller."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens

    def copy_with_new_block_size(self, block_tokens: int) -> Spec:
        return Spec(block_tokens)


class Builder:
    """Keeps the batch that it is asked to describe."""

    def __init__(self, spec: Spec, names: list[str], config: Any, device: Any) -> None:
        self.spec = spec
        SEEN.append(self)

    def build(self, common_prefix_len: int, batch: Any) -> Any:
        self.batch = batch
        return batch


SEEN: list[Any] = []


@pytest.fixture
def recomputer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes one for blocks of so many tokens, on a kernel with blocks of TOKENS."""
    SEEN.clear()
    monkeypatch.setattr(recomputing, "set_forward_context", lambda *args, **more: nullcontext())

    def make(block_tokens: int, model: Any = lambda **inputs: None) -> Recomputer:
        config: Any = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=block_tokens),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=100, max_num_seqs=4),
        )
        backend = SimpleNamespace(get_builder_cls=lambda: Builder)
        layer = SimpleNamespace(
            get_attn_backend=lambda: backend, get_kv_cache_spec=lambda config: Spec(block_tokens)
        )
        return Recomputer(config, model, {"layer": layer}, TOKENS, torch.device("cpu"))

    return make


def test_the_kernel_is_given_its_own_blocks_where_it_cuts_those_of_requests(recomputer: Any):
    given: dict[str, Any] = {}
    two = recomputer(2 * TOKENS, lambda **inputs: given.update(inputs))
    two.recompute([BorrowJob("one", [7, 3], [], [30, 31, 32, 50], [130, 131, 132, 150])])
    (builder,) = SEEN
    assert builder.spec.block_tokens == TOKENS
    assert builder.batch.block_table_tensor.tolist() == [[14, 15, 6, 7]] * 2
    assert builder.batch.seq_lens.tolist() == [33, 51]
    assert builder.batch.seq_lens_cpu_upper_bound.device.type == "cpu"
    assert builder.batch.query_start_loc.tolist() == [0, 3, 4]
    assert builder.batch.slot_mapping.tolist() == [7 * 32 + 30, 7 * 32 + 31, 3 * 32, 3 * 32 + 18]
    assert given["input_ids"].dtype == torch.int32
    assert given["positions"].tolist() == [30, 31, 32, 50]


@pytest.mark.parametrize("block_tokens", [TOKENS // 2, TOKENS + 8])
def test_blocks_that_the_kernel_cannot_cut_are_refused(recomputer: Any, block_tokens: int):
    with pytest.raises(UnknownLayout, match="do not fill blocks"):
        recomputer(block_tokens)
