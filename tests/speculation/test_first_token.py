"""A guess of the first token: for which prompts it is the beginning of the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ragcache_engine import Guide, SamplingOptions
from ragcache_engine.speculation.first_token import (
    are_alike,
    is_first_token_of,
    keep_first_token,
)

WANTED = SamplingOptions(max_tokens=40, stop=("\n",), top_p=0.5)


def test_it_is_the_beginning_whatever_ends_the_answer():
    guess = keep_first_token(WANTED)
    for max_tokens in (1, 2, None):
        for stop in ((), (".", "!")):
            assert is_first_token_of(guess, replace(WANTED, max_tokens=max_tokens, stop=stop))


@pytest.mark.parametrize(
    "other",
    [{"temperature": 0.5}, {"top_p": 0.9}, {"ignore_eos": True}, {"skip_special_tokens": False}],
    ids=str,
)
def test_it_is_not_where_other_options_differ(other: dict[str, object]):
    assert not is_first_token_of(keep_first_token(WANTED), replace(WANTED, **other))


@pytest.mark.parametrize(
    "tied",
    [
        {"guide": Guide.regex("[a-z]+")},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"temperature": 0.5, "seed": 3},
    ],
    ids=lambda tied: " ".join(tied),
)
def test_it_is_not_where_the_rest_depends_on_where_it_begins(tied: dict[str, object]):
    options = replace(WANTED, **tied)
    assert not are_alike(options, options)
    assert not is_first_token_of(keep_first_token(options), options)


def test_a_longer_guess_and_one_with_stop_strings_are_no_first_token():
    assert not is_first_token_of(replace(WANTED, max_tokens=2, stop=()), WANTED)
    assert not is_first_token_of(replace(WANTED, max_tokens=1), WANTED)


def test_a_seed_matters_only_where_tokens_are_drawn():
    greedy = replace(WANTED, seed=3)
    assert is_first_token_of(keep_first_token(greedy), greedy)
