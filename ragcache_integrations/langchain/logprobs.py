"""Writes how likely an answer's tokens were in the form of OpenAI's chat API, as ChatOpenAI gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragcache_engine import TokenLogprob


def with_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return metadata with "logprobs" for these tokens; nothing without any, as nobody asked then."""
    if not tokens:
        return {}
    told = [
        {
            **_entry(each.token, each.logprob),
            "top_logprobs": [_entry(token, logprob) for token, logprob in each.top],
        }
        for each in tokens
    ]
    return {"logprobs": {"content": told, "refusal": None}}


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode()), "logprob": logprob}
