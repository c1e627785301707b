"""OpenAI's own client, which knows nothing of us, at a real server that knows the documents."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from http_servers import OPERATOR, PRESS, SHOP
from openai import OpenAI
from real_servers import RealServer, ragcache_serve
from waiting import eventually

from ragcache_engine.corpora import KeepFor, Pushed, Registered, ServerCorpora
from ragcache_engine.tiers.borrowing.plan import WhyExact

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

FEW = WhyExact.FEW_DOCUMENTS.value
LINE = "On page {}, line {}, the sea is said to be {} fathoms deep."
SEA = [
    Registered(
        f"page {n}",
        " ".join(LINE.format(n, line, line * n) for line in range(9)),
        vector=[1.0, n / 10],
    )
    for n in range(6)
]
SHARED = Registered(
    "harbour", "In the harbour ships wait for the tide to come in, and are calm. " * 3
)


@pytest.fixture(scope="module")
def server(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("any-client")
    (folder / "keys.toml").write_text(
        f'[tenants]\nshop = ["{SHOP}"]\npress = ["{PRESS}"]\n[operators]\nanna = ["{OPERATOR}"]\n'
    )
    line = {"id": SHARED.id, "text": SHARED.text}
    (folder / "everybodys.jsonl").write_text(json.dumps(line) + "\n")
    small = ("--dtype", "float32", "--max-model-len", "2048", "--served-model-name", "smol")
    with ragcache_serve(
        demo_model,
        folder / "log",
        *("--keys", str(folder / "keys.toml"), "--host-cache", "600MiB"),
        *("--reuse", "anywhere", "--recompute-ratio", "0.1"),
        *("--corpus", str(folder / "everybodys.jsonl")),
        vllm=(*small, "--kv-cache-memory-bytes", str(300 << 20)),
        environment={"RAGCACHE_HOME": str(folder / "home")},
    ) as server:
        ServerCorpora(server.url, SHOP).push("sea", SEA)
        yield server


def client_of(server: RealServer, key: str = SHOP) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key)


def asked(*pages: int) -> str:
    texts = "\n".join(f"[{n}] {SEA[page].text}" for n, page in enumerate(pages, 1))
    return f"Answer from these texts.\n{texts}\n\nHow deep is the sea?"


def chat(server: RealServer, prompt: str, key: str = SHOP, **how: Any) -> Any:
    return client_of(server, key).chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=6,
        temperature=0,
        **how,
    )


def reuse_of(answer: Any) -> dict[str, Any]:
    told = answer.model_extra["ragcache"]
    assert isinstance(told, dict)
    return told


def why_exact(answer: Any) -> str:
    return str(answer.model_extra["kv_transfer_params"]["ragcache"].get("why_exact", ""))


def test_new_documents_are_answered_exactly_then_prepared_and_borrowed(server: RealServer):
    first = chat(server, asked(0, 1, 2))
    assert reuse_of(first) == {"approximate": False, "borrowed_tokens": 0, "recomputed_tokens": 0}
    assert eventually(lambda: borrows_by_now(server)), "idle time prepares what was asked for"
    again = chat(server, asked(1, 0, 2))
    assert reuse_of(again)["borrowed_tokens"] > 100
    details = again.usage.prompt_tokens_details
    assert details.cached_tokens + reuse_of(again)["borrowed_tokens"] < again.usage.prompt_tokens


def borrows_by_now(server: RealServer) -> bool:
    """Leave the server idle for a while, and ask in another order."""
    time.sleep(1)
    return bool(reuse_of(chat(server, asked(2, 1, 0)))["approximate"])


def test_a_request_that_asks_for_an_exact_answer_borrows_nothing(server: RealServer):
    chat(server, asked(0, 1, 2))
    for how in (
        {"extra_body": {"ragcache": {"exact": True}}},
        {"extra_headers": {"X-RAGCache-Exact": "1"}},
    ):
        exact = chat(server, asked(2, 0, 1), **how)
        assert not reuse_of(exact)["approximate"]
        assert why_exact(exact) == WhyExact.ASKED


def test_a_stream_says_in_its_head_that_it_may_be_an_approximation(server: RealServer):
    made = client_of(server).chat.completions.with_raw_response
    question: Any = {"role": "user", "content": asked(3, 4)}
    raw = made.create(model="smol", messages=[question], max_tokens=4, stream=True)
    assert raw.headers["x-ragcache-reuse"] == "anywhere"
    assert len([piece for piece in raw.parse() if piece.choices]) >= 4
    question = {"role": "user", "content": "How deep is the sea?"}
    raw = made.create(model="smol", messages=[question], max_tokens=4, stream=True)
    assert raw.headers["x-ragcache-reuse"] == "exact"
    assert [*raw.parse()]


def test_borrowed_tokens_are_no_cached_tokens_in_a_stream_either(
    server: RealServer, own: ServerCorpora
):
    chat(server, asked(0, 1), PRESS)
    own.warm("own")
    made = client_of(server, PRESS).chat.completions
    question: Any = {"role": "user", "content": asked(4, 2, 1)}
    pieces = made.create(
        model="smol",
        messages=[question],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = pieces
    told = reuse_of(chat(server, asked(4, 1, 2), PRESS))
    assert told["borrowed_tokens"] > 200
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    exact = last.usage.prompt_tokens_details.cached_tokens
    assert exact + told["borrowed_tokens"] < last.usage.prompt_tokens


def test_tools_change_the_prompt_and_documents_are_found_in_it_all_the_same(server: RealServer):
    tool: Any = {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
    }
    found = chat(server, asked(0, 1), tools=[tool], tool_choice="none")
    assert why_exact(found) != FEW
    assert found.choices[0].message.content


def test_a_completion_names_its_documents_too(server: RealServer):
    made = client_of(server).completions.create(model="smol", prompt=asked(4, 5), max_tokens=2)
    assert why_exact(made) != FEW


def test_the_newer_paths_find_documents_too(server: RealServer):
    chat(server, asked(0, 1, 2))
    answer = client_of(server).responses.create(
        model="smol",
        instructions="Be short.",
        input=asked(2, 1, 0),
        max_output_tokens=6,
        temperature=0,
    )
    assert answer.output_text
    assert reuse_of(answer)["approximate"] or why_exact(answer) not in ("", FEW)
    said = {
        "model": "smol",
        "system": "Be short.",
        "max_tokens": 6,
        "messages": [{"role": "user", "content": [{"type": "text", "text": asked(1, 2, 0)}]}],
    }
    # Anthropic's clients send their key by this name.
    told = httpx2.post(
        f"{server.url}/v1/messages", json=said, headers={"x-api-key": SHOP}, timeout=60
    ).json()
    assert told["content"][0]["text"]
    assert told["ragcache"]["approximate"] or told["kv_transfer_params"]["ragcache"].get(
        "why_exact", FEW
    ) not in ("", FEW)
    unknown = httpx2.post(
        f"{server.url}/v1/messages", json=said, headers={"x-api-key": "somebody's"}
    )
    assert unknown.status_code == 401


def test_what_is_kept_of_a_corpus_is_in_its_tier(server: RealServer, own: ServerCorpora):
    chat(server, asked(0, 1), PRESS)
    some = ["page 2", "page 3"]
    assert own.warm("own", some, keep=KeepFor("host", for_s=600)).left_out == 0
    assert eventually(lambda: all(0 < one.tokens == one.held_tokens for one in own.kept("own")))
    assert {name for one in own.kept("own") for name in one.ids} >= {*some}
    assert own.release("own") >= 1
    assert own.kept("own") == ()


def test_a_tenants_documents_are_nobody_elses_and_the_servers_own_are_everybodys(
    server: RealServer,
):
    assert why_exact(chat(server, asked(0, 1), PRESS)) == FEW
    harbour = f"{SHARED.text}\n\n{SHARED.text}\n\nWhat waits?"
    assert why_exact(chat(server, harbour, PRESS)) != FEW


@pytest.fixture
def own(server: RealServer) -> Iterator[ServerCorpora]:
    """Yield corpora of another tenant, with one of its own until the test ends."""
    corpora = ServerCorpora(server.url, PRESS)
    corpora.push("own", SEA)
    yield corpora
    corpora.remove("own")


def test_a_warmed_corpus_is_borrowed_by_the_first_question_about_it(
    server: RealServer, own: ServerCorpora
):
    chat(server, asked(0, 1), PRESS)
    warmed = own.warm("own")
    assert warmed.prepared + warmed.cached == len(SEA)
    first = chat(server, asked(5, 3, 2), PRESS)
    assert reuse_of(first)["borrowed_tokens"] > 200
    assert own.warm("own").cached == len(SEA)


def test_what_is_near_the_documents_of_a_prompt_is_prepared_when_the_server_is_idle(
    server: RealServer, own: ServerCorpora
):
    chat(server, asked(0, 1), PRESS)
    time.sleep(1)
    assert eventually(lambda: not is_preparing(server))
    assert reuse_of(chat(server, asked(0, 2, 3), PRESS))["borrowed_tokens"] > 200


def is_preparing(server: RealServer) -> bool:
    """Return whether the server has anything to prepare; leave it idle for a while before."""
    time.sleep(0.3)
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    told = httpx2.get(f"{server.url}/metrics", headers=headers).text
    lines = [line for line in told.splitlines() if "unprepared" in line and line[0] != "#"]
    return any(not line.endswith(" 0.0") for line in lines)


def test_pushing_again_changes_nothing_and_a_removed_corpus_is_found_no_more(server: RealServer):
    corpora = ServerCorpora(server.url, PRESS)
    assert corpora.push("mine", SEA[:2]) == Pushed(added=2)
    assert corpora.push("mine", SEA[:2]) == Pushed(same=2)
    assert why_exact(chat(server, asked(0, 1), PRESS)) != FEW
    assert corpora.remove("mine") == 2
    assert why_exact(chat(server, asked(0, 1), PRESS)) == FEW


def test_an_operator_sees_how_many_documents_were_found(server: RealServer):
    told = {}
    for key in (SHOP, OPERATOR):
        headers = {"Authorization": f"Bearer {key}"}
        told[key] = httpx2.get(f"{server.url}/metrics", headers=headers)
    assert told[SHOP].status_code == 403
    assert f"ragcache_registered_documents {len(SEA) + 1}.0" in told[OPERATOR].text
    assert "ragcache_recognised_documents_total" in told[OPERATOR].text
