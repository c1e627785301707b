"""benchmarks/selecting: a pass that computes single tokens again, rules, and Cache-Craft's measures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from selecting.donors import Attention, Donor, Harvest, cut_donor  # noqa: E402
from selecting.model import SmallLlama  # noqa: E402
from selecting.rules import (  # noqa: E402
    ASKED,
    BLENDED,
    FIRST,
    Mixed,
    choose,
    choose_as_cache_craft,
    choose_half,
)

TOKENS = [
    int(one) for one in torch.randint(0, 90, (40,), generator=torch.Generator().manual_seed(1))
]
SPANS = [(12, 20), (21, 33)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=90,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.4,
    )
    folder = tmp_path_factory.mktemp("tiny")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> SmallLlama:
    return SmallLlama(folder)


def run_all(model: SmallLlama, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    room = model.make_room(len(tokens) + 8)
    hidden = model.run(tokens, torch.arange(len(tokens)), room)
    return room, model.score(hidden)


def mixed_prompt(model: SmallLlama) -> Mixed:
    """A prompt whose second and third documents were computed behind the system text alone."""
    exact, _ = run_all(model, TOKENS)
    tensors = exact[:, :, :, : len(TOKENS)].clone()
    donors = []
    for start, end in SPANS:
        room = model.make_room(4 + end - start)
        places = torch.arange(room.shape[3])
        seen = Attention(model, places)
        model.run([*TOKENS[:4], *TOKENS[start:end]], places, room, seen)
        assert isinstance(seen.share, torch.Tensor)
        donor = cut_donor(room, seen.share, (4, len(places)), [])
        tensors[:, :, :, start:end] = model.turn(donor.tensors, start - 4)
        donors.append(donor)
    gaps, asked = [20], list(range(33, 40))
    return Mixed(model, TOKENS, tensors, 12, SPANS, donors, [], gaps, asked)


def test_it_computes_what_transformers_computes(model: SmallLlama, folder: Path):
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        expected = theirs(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(run_all(model, TOKENS)[1], expected, atol=2e-4, rtol=1e-4)


def test_answers_of_several_prompts_are_those_of_each(model: SmallLlama):
    other = TOKENS[::-1]
    both = [run_all(model, TOKENS), run_all(model, other)]
    together = model.answer(
        [room for room, _ in both], torch.stack([logits[-1] for _, logits in both]), 40, 6
    )
    for tokens, answer in zip((TOKENS, other), together, strict=True):
        text = list(tokens)
        for token in answer:
            assert int(run_all(model, text)[1][-1].argmax()) == token
            text.append(token)


def test_keys_turned_to_another_place_are_those_computed_there(model: SmallLlama):
    room = model.make_room(8)
    model.run(TOKENS[:8], torch.arange(8), room, layers=1)
    elsewhere = model.make_room(28)
    model.run(TOKENS[:8], torch.arange(20, 28), elsewhere, layers=1)
    # The first layer sees no other token, so its keys depend on the place alone.
    torch.testing.assert_close(
        model.turn(room, 20)[0, 0], elsewhere[0, 0, :, 20:], atol=1e-5, rtol=1e-4
    )


def test_computing_every_borrowed_token_again_gives_the_exact_tensors(model: SmallLlama):
    mixed = mixed_prompt(model)
    exact, _ = run_all(model, TOKENS)
    assert not torch.allclose(mixed.tensors, exact[:, :, :, :40], atol=1e-3)
    fresh = sorted([*mixed.gaps, *choose(mixed, FIRST, 1.0), *mixed.asked])
    model.run([TOKENS[at] for at in fresh], torch.tensor(fresh), mixed.tensors)
    torch.testing.assert_close(mixed.tensors, exact[:, :, :, :40], atol=1e-4, rtol=1e-3)


def test_rules_take_the_share_they_are_given(model: SmallLlama):
    mixed = mixed_prompt(model)
    assert choose(mixed, FIRST, 0.25) == [12, 13, 21, 22, 23]
    for rule in (ASKED, BLENDED):
        taken = choose(mixed, rule, 0.25)
        assert len(taken) == len(set(taken)) == 5
        assert set(taken) <= set(mixed.places.tolist())
    half = choose_half(mixed, ASKED, 0.4)
    assert len(half) == len(set(half)) == 8
    assert {12, 13, 21, 22, 23} <= set(half)


def test_cacheblend_finds_no_deviation_where_tensors_are_exact(model: SmallLlama):
    mixed = mixed_prompt(model)
    mixed.tensors = run_all(model, TOKENS)[0][:, :, :, :40]
    assert float(mixed.deviate_early().max()) < 1e-6


def donor(before: tuple[tuple[str, float, int], ...], inside: float = 8.0) -> Donor:
    return Donor(torch.zeros(2, 1, 1, 4, 2), 0, torch.tensor([0.0, 3.0, 1.0, 2.0]), inside, before)


def test_context_impact_and_overlap_are_cache_crafts():
    behind = donor((("a", 6.0, 3), ("b", 2.0, 5)))
    between, within = 6 / (4 * 3) + 2 / (4 * 5), 8 / 16
    assert behind.context_impact == pytest.approx(1 / (1 + math.exp(-between / within)))
    assert behind.measure_overlap(["x", "y"]) == 0
    assert behind.measure_overlap(["x", "a"]) == pytest.approx(6 / 8)
    assert behind.measure_overlap(["a", "x", "b"]) == 1
    assert behind.measure_overlap(["b", "a"]) == 0  # the one pair stands the other way round
    assert behind.measure_overhead(["a", "b"]) == 0


def test_the_variant_whose_context_is_nearest_is_chosen():
    harvest = Harvest(most=10)
    near, far = donor((("a", 6.0, 3),)), donor((("z", 6.0, 3),))
    for prompt, one in enumerate((near, far)):
        harvest.add("d", one, prompt)
    assert harvest.choose("d", ["a"], other_than=7) is near
    assert harvest.choose("d", ["z"], other_than=7) is far
    assert harvest.choose("e", ["a"], other_than=7) is None


def test_a_prompt_borrows_nothing_that_it_lent_itself():
    harvest = Harvest(most=10)
    near, far = donor((("a", 6.0, 3),)), donor((("z", 6.0, 3),))
    harvest.add("d", near, 1)
    assert not harvest.has("d", other_than=1)
    assert harvest.choose("d", ["a"], other_than=1) is None
    harvest.add("d", far, 2)
    assert harvest.has("d", other_than=1)
    assert harvest.choose("d", ["a"], other_than=1) is far


def test_a_prompt_that_comes_again_lends_one_variant():
    harvest = Harvest(most=10)
    for _ in range(Harvest.VARIANTS + 1):
        harvest.add("d", donor((("z", 6.0, 3),)), 1)
    harvest.add("d", near := donor((("a", 6.0, 3),)), 2)
    assert harvest.choose("d", ["a"], other_than=7) is near
    assert harvest.choose("d", ["a"], other_than=2) is not None


def test_cache_craft_computes_nothing_again_behind_the_same_documents(model: SmallLlama):
    mixed = mixed_prompt(model)
    outside = torch.arange(8).float(), torch.arange(12).float()
    mixed.donors = [
        Donor(torch.zeros(2, 1, 1, len(one), 2), 0, one, 1.0, (("a", 1.0, 5),)) for one in outside
    ]
    assert choose_as_cache_craft(mixed, 1.0, ["a", "b", "c"]) == []
    taken = choose_as_cache_craft(mixed, 1.0, ["x", "b", "c"])
    assert {19, 32} <= set(taken)  # those that looked most at what stood before them
    assert 20 * 0.5 <= len(taken) <= 20
