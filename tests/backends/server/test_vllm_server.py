"""What a plain vLLM server tells of an answer, and what it leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from ragcache_engine.backends.server.vllm_server import _read_delta
from ragcache_engine.values import CachedTokens, TokenLogprob

END = {"choices": [{"text": " end", "finish_reason": "stop", "token_ids": [7]}]}


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 32}}, CachedTokens(device=32)),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, CachedTokens()),
        ({"prompt_tokens_details": None}, None),
        ({}, None),
    ],
)
def test_what_was_cached_is_known_only_if_the_server_tells(
    details: dict[str, Any], cached: CachedTokens | None
):
    last = _read_delta(END, None)
    delta = _read_delta({"choices": [], "usage": {"prompt_tokens": 40, **details}}, last)
    assert delta.cached == cached
    assert delta.prompt_tokens == 40
    assert delta.why_exact is not None, "it borrows nothing either way"


def test_logprobs_are_read_from_the_form_of_openais_completions():
    told = {
        "tokens": [" end"],
        "token_logprobs": [-1.5],
        "top_logprobs": [{" end": -1.5, " stop": -0.5, ".": -1.0}],
    }
    chunk = {"choices": [{**END["choices"][0], "logprobs": told}]}
    last = _read_delta(chunk, None, 2)
    assert last.logprobs == (TokenLogprob(" end", -1.5, ((" stop", -0.5), (".", -1.0))),)
    assert _read_delta({"choices": [], "usage": {}}, last, 2).logprobs == last.logprobs
