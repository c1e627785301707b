"""What answers to OpenAI's requests say of reuse, and what they keep to themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.types import Message

from ragcache_engine.serving.openai_answers import OpenAIAnswer, rewrite_answer
from ragcache_engine.tiers.provenance import ReuseReport
from ragcache_engine.values import DocumentReuse

BORROWED = ReuseReport(
    [
        DocumentReuse("tides", 100, "host"),
        DocumentReuse("salt", 100, "host", borrowed=90, recomputed=10, joined=2),
    ]
)


def answer(reuse: ReuseReport | None = None) -> dict[str, Any]:
    ours = {"tokens": {"device": 64}, "counters": {"x": 1}}
    if reuse:
        ours["reuse"] = reuse.to_dict()
    return {"kv_transfer_params": {"ragcache": ours}}


def rewritten(said: dict[str, Any], *, is_private: bool = True) -> dict[str, Any]:
    told = json.loads(rewrite_answer(json.dumps(said).encode(), is_private=is_private))
    assert isinstance(told, dict)
    return told


async def sent(kind: bytes, *bodies: bytes, **how: bool) -> list[Message]:
    """What a client gets of an answer that comes in these pieces."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    outward = OpenAIAnswer(
        send, **({"is_private": True, "borrows": True, "may_borrow": True} | how)
    )
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(b"".join(bodies)))]
    await outward({"type": "http.response.start", "status": 200, "headers": headers})
    for body in bodies:
        await outward({"type": "http.response.body", "body": body, "more_body": True})
    await outward({"type": "http.response.body", "body": b""})
    return messages


@pytest.mark.parametrize("is_private", [True, False])
def test_a_tenants_answer_is_without_the_counters_of_the_others(is_private):
    told = rewritten(answer(), is_private=is_private)
    assert ("counters" in told["kv_transfer_params"]["ragcache"]) is not is_private


def test_an_answer_says_whether_it_is_an_approximation_and_what_it_borrowed():
    assert rewritten(answer(BORROWED))["ragcache"] == {
        "approximate": True,
        "borrowed_tokens": 92,
        "recomputed_tokens": 10,
    }
    assert rewritten(answer())["ragcache"] == {
        "approximate": False,
        "borrowed_tokens": 0,
        "recomputed_tokens": 0,
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"error": {}}', b'{"kv_transfer_params": null}', b"\xff"]
)
def test_any_other_answer_passes_as_it_is(body):
    assert rewrite_answer(body, is_private=True) == body


async def test_the_length_of_a_rewritten_answer_is_told_anew():
    text = json.dumps(answer(BORROWED)).encode()
    start, body = await sent(b"application/json", text[:20], text[20:])
    assert json.loads(body["body"])["ragcache"]["approximate"]
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])


async def test_a_stream_passes_as_it_comes():
    _, *pieces = await sent(b"text/event-stream", b"data: 1\n\n", b"data: 2\n\n")
    assert [piece["body"] for piece in pieces] == [b"data: 1\n\n", b"data: 2\n\n", b""]


@pytest.mark.parametrize(("may_borrow", "told"), [(True, b"anywhere"), (False, b"exact")])
@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json"])
async def test_a_header_says_before_the_answer_whether_it_may_be_an_approximation(
    kind, may_borrow, told
):
    start, *_ = await sent(kind, b"{}", may_borrow=may_borrow)
    assert dict(start["headers"])[b"x-ragcache-reuse"] == told
