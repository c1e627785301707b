"""Clients of real servers: they answer as the engine in this process does, to the token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from http_servers import OPERATOR
from real_servers import RealServer, vllm_serve

from ragcache_engine import (
    Document,
    EmptyPrompt,
    Guide,
    InvalidArgument,
    OperatorsOnly,
    PromptTooLong,
    RAGCacheEngine,
    SamplingOptions,
    ServerLacks,
    UnsupportedGuide,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SLICES = Document("slices", "A slicing selects a range of items in a sequence object. " * 8)
WITH = Document("with", "The with statement wraps a block with a context manager's methods. " * 8)
CHAT = [
    {"role": "system", "content": f"Use these texts.\n\n{SLICES.text}\n\n{WITH.text}"},
    {"role": "user", "content": "What is a slice?"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
OPTIONS = {
    "greedy": SamplingOptions(max_tokens=16),
    "drawn": SamplingOptions(max_tokens=16, temperature=0.8, top_p=0.9, top_k=50, seed=7),
    "penalties": SamplingOptions(max_tokens=16, repetition_penalty=1.2, presence_penalty=0.5),
    "choice": SamplingOptions(guide=Guide.choice(["a range of items", "a method"])),
    "json": SamplingOptions(
        max_tokens=40,
        guide=Guide.json({"type": "object", "properties": {"a": {"type": "integer"}}}),
    ),
    "stop": SamplingOptions(max_tokens=16, stop=(" of",)),
    "special": SamplingOptions(max_tokens=16, skip_special_tokens=False),
}


@pytest.fixture(scope="module")
def stock_server(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A plain vLLM server, in the numbers of `vllm_engine`."""
    small = ("--dtype", "float32", "--max-model-len", "4096", "--enforce-eager")
    log = tmp_path_factory.mktemp("stock") / "log"
    memory = ("--kv-cache-memory-bytes", str(400 << 20))
    details = ("--enable-prompt-tokens-details", "--served-model-name", "smol")
    with vllm_serve(demo_model, log, *small, *memory, *details) as server:
        yield server


@pytest.fixture(scope="module")
def stock_client(stock_server: RealServer) -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine.connect(stock_server.url) as engine:
        yield engine


@pytest.fixture(params=["server_engine", "stock_client"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_answers_are_those_of_the_engine_in_this_process(
    client: RAGCacheEngine, vllm_engine: RAGCacheEngine, options: SamplingOptions
):
    prompt = vllm_engine.chat.prompt(CHAT)
    assert client.chat.prompt(CHAT) == prompt
    expected = vllm_engine.generate(prompt, [SLICES, WITH], options)
    answer = client.generate(prompt, [SLICES, WITH], options)
    assert (answer.text, answer.token_ids) == (expected.text, expected.token_ids)
    assert answer.finish_reason is expected.finish_reason
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.document_ids == ("slices", "with")


def test_tokens_and_tool_calls_are_those_of_the_engine_in_this_process(
    client: RAGCacheEngine, vllm_engine: RAGCacheEngine
):
    text = "The café's slices: Größe: 12 €."
    assert list(client.tokenize(text).token_ids) == list(vllm_engine.tokenize(text).token_ids)
    assert client.chat.takes_tools == vllm_engine.chat.takes_tools
    prompt = vllm_engine.chat.prompt(CHAT[1:], tools=[TOOL])
    assert client.chat.prompt(CHAT[1:], tools=[TOOL]) == prompt
    options = client.chat.tool_options(SamplingOptions(max_tokens=64), [TOOL], must_call=True)
    texts = [engine.generate(prompt, options=options).text for engine in (client, vllm_engine)]
    assert texts[0] == texts[1]
    reader = client.chat.tool_reader([TOOL], must_call=True)
    assert [call.name for call in reader.whole(texts[0]).calls] == ["look_up"]


def test_bad_prompts_are_named_at_the_call(client: RAGCacheEngine):
    with pytest.raises(PromptTooLong):
        client.stream("word " * 5000)
    with pytest.raises(EmptyPrompt):
        client.stream("")
    with pytest.raises(UnsupportedGuide):
        client.stream("Why?", options=SamplingOptions(guide=Guide.regex("(")))


def test_an_answer_without_a_limit_may_fill_the_context(client: RAGCacheEngine):
    options = SamplingOptions(max_tokens=None, ignore_eos=True)
    with client.stream("word " * 4050, options=options) as pieces:
        answer = pieces.answer()
    assert answer.usage.prompt_tokens + answer.usage.output_tokens in (4096, 4097)


def test_a_plain_server_says_what_it_lacks(
    stock_server: RealServer, caplog: pytest.LogCaptureFixture
):
    with RAGCacheEngine.connect(stock_server.url) as engine:
        (warning,) = [each.message for each in caplog.records if "plain vLLM" in each.message]
        assert "forget and clear_cache raise ServerLacks" in warning
        with pytest.raises(ServerLacks, match="ragcache serve"):
            engine.forget(["slices"])
        with pytest.raises(ServerLacks):
            engine.clear_cache()


def test_a_plain_server_keeps_tenants_apart_and_tells_what_it_had_cached(
    stock_client: RAGCacheEngine,
):
    prompt = f"{WITH.text * 4}\n\nWhat else is with?"  # vLLM's own blocks have 128 tokens here

    def cached(tenant: str) -> int:
        return stock_client.generate(prompt, [WITH], tenant=tenant).usage.cached.total

    assert [cached("shop"), cached("shop") > 0, cached("press")] == [0, True, 0]


@pytest.mark.parametrize(
    "salt", ["a" * 128, "a" * 129, "anna@example.com", "a/b", "a\\b", "user:42"]
)
def test_a_tenant_is_refused_by_name_exactly_where_vllms_server_takes_no_such_salt(
    stock_client: RAGCacheEngine, stock_server: RealServer, salt: str
):
    body = {"model": "smol", "prompt": "Why?", "max_tokens": 1, "cache_salt": salt}
    taken = httpx2.post(f"{stock_server.url}/v1/completions", json=body, timeout=60).is_success
    assert taken == (salt in ("a" * 128, "user:42"))
    if taken:
        assert stock_client.generate(
            "Why?", options=SamplingOptions(max_tokens=1), tenant=salt
        ).token_ids
    else:
        with pytest.raises(InvalidArgument, match="none of @, / and"):
            stock_client.generate("Why?", options=SamplingOptions(max_tokens=1), tenant=salt)


def test_a_client_that_leaves_frees_its_request_on_the_server(
    client: RAGCacheEngine, stock_server: RealServer, ragcache_server: RealServer
):
    server = stock_server if client.config.server_url == stock_server.url else ragcache_server
    options = SamplingOptions(max_tokens=None, ignore_eos=True)
    with client.stream("Count to a thousand.", options=options) as pieces:
        next(pieces)
        assert running_on(server) == 1
    deadline = time.monotonic() + 30
    while running_on(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running_on(server) == 0


def running_on(server: RealServer) -> int:
    """How many requests vLLM runs, as its own metrics tell."""
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    metrics = httpx2.get(f"{server.url}/metrics", headers=headers).text
    (line,) = [
        each for each in metrics.splitlines() if each.startswith("vllm:num_requests_running{")
    ]
    return int(float(line.rsplit(" ", 1)[1]))


def test_a_tenants_key_opens_its_tensors_and_no_others(ragcache_server: RealServer):
    prompt = f"{WITH.text}\n\nWhose is this?"

    def cached(key: str, tenant: str | None = None) -> int:
        with RAGCacheEngine.connect(ragcache_server.url, api_key=key) as engine:
            options = SamplingOptions(max_tokens=2)
            return engine.generate(prompt, [WITH], options, tenant=tenant).usage.cached.total

    assert cached("the key of the shop") == 0
    assert cached("the key of the shop") > 0
    assert cached("the key of the press", "shop") == 0
    assert cached(OPERATOR, "shop") > 0


@pytest.mark.parametrize("tenant", ["the key of the shop", "the key of the press"])
def test_openais_own_requests_stay_inside_the_keys_tenant(ragcache_server: RealServer, tenant: str):
    text = "A slice of bread is no slicing, whoever cuts it, and however thin it is. " * 6
    body = {
        "prompt": f"{text}Why?",
        "max_tokens": 2,
        "cache_salt": "mine",
        "kv_transfer_params": {"ragcache": {"documents": [[0, len(text), "bread"]]}},
    }
    headers = {"Authorization": f"Bearer {tenant}"}

    def ask() -> dict[str, Any]:
        url = f"{ragcache_server.url}/v1/completions"
        answer = httpx2.post(url, json=body, headers=headers, timeout=60)
        told: dict[str, Any] = answer.json()["kv_transfer_params"]["ragcache"]
        return told

    assert ask()["tokens"]["device"] == 0
    second = ask()
    assert second["tokens"]["device"] > 0
    assert "counters" not in second


def test_a_tenant_neither_forgets_nor_reads_metrics(ragcache_server: RealServer):
    key = "the key of the shop"
    with RAGCacheEngine.connect(ragcache_server.url, api_key=key) as engine:
        with pytest.raises(OperatorsOnly):
            engine.forget(["slices"])
        assert engine.stats().tiers.ended == 0
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx2.get(f"{ragcache_server.url}/metrics", headers=headers).status_code == 403
