"""vLLM's own parsers tell the reasoning of a real model apart from its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_servers import OPERATOR
from real_servers import ragcache_serve
from thinking_model import make_thinking_model

from ragcache_engine import (
    ConfigError,
    EngineConfig,
    FinishReason,
    GenerationFailed,
    Guide,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.values import TokenizedPrompt

pytestmark = pytest.mark.vllm

SMALL: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024}
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Riga", "Oslo"]}}, "required": ["city"]}
OPENED, CLOSED = (
    "<|im_start|>assistant\n<think>\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


@pytest.fixture(scope="module")
def thinking_model(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_thinking_model(demo_model, tmp_path_factory.mktemp("thinking"))


@pytest.fixture(scope="module", params=["qwen3", "deepseek_r1"])
def parsers(request: pytest.FixtureRequest, thinking_model: str) -> Any:
    """(vLLM's parsers, the tokenizer), without a running model."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.tokenizers import cached_tokenizer_from_config

    from ragcache_engine.backends.vllm.reasoning import ReasoningParsers

    arguments = AsyncEngineArgs(
        model=thinking_model, reasoning_parser=request.param, block_size=32, max_model_len=512
    )
    config = arguments.create_engine_config()
    tokenizer = cached_tokenizer_from_config(config.model_config)
    return ReasoningParsers(config, tokenizer), tokenizer


def read(parsers: Any, prompt: str, said: str, tokens_each: int = 1) -> list[Delta]:
    """Read an answer in pieces of so many tokens."""
    made, tokenizer = parsers
    request = BackendRequest(
        "r",
        TokenizedPrompt(prompt, tokenizer.encode(prompt, add_special_tokens=False)),
        (),
        SamplingOptions(template_args={}),
    )
    reader = made.make_reader(request)
    ids = tokenizer.encode(said, add_special_tokens=False)
    parts = [tuple(ids[at : at + tokens_each]) for at in range(0, len(ids), tokens_each)]
    ends = [None] * (len(parts) - 1) + [FinishReason.STOP]
    return [
        reader.read(Delta(tokenizer.decode(list(part)), part, None, end))
        for part, end in zip(parts, ends, strict=True)
    ]


def joined(deltas: list[Delta]) -> tuple[str, str]:
    return "".join(one.reasoning for one in deltas), "".join(one.text for one in deltas)


@pytest.mark.parametrize("tokens_each", [1, 4, 100])
def test_vllms_parsers_divide_an_answer_that_comes_in_pieces(parsers: Any, tokens_each: int):
    said = "They ask why.\n</think>\n\nBecause of the air."
    deltas = read(parsers, OPENED, said, tokens_each)
    assert joined(deltas) == ("They ask why.\n", "\n\nBecause of the air.")


def test_a_prompt_that_closes_the_reasoning_leaves_none(parsers: Any):
    assert joined(read(parsers, CLOSED, "Because of the air.")) == ("", "Because of the air.")


def test_the_last_delta_counts_its_tokens(parsers: Any):
    prompt = "<|im_start|>assistant\n"
    deltas = read(parsers, prompt, "<think>They ask why.</think>Because of the air.")
    _, tokenizer = parsers
    wanted = len(tokenizer.encode("They ask why.", add_special_tokens=False))
    assert [one.reasoning_tokens for one in deltas[:-1]] == [0] * (len(deltas) - 1)
    assert deltas[-1].reasoning_tokens == wanted


def test_a_request_that_vllms_process_could_not_read_is_refused():
    from ragcache_engine.backends.vllm.backend import require_readable, to_sampling_params

    arguments = {"reasoning_parser_kwargs": {"chat_template_kwargs": {"effort": 10**30}}}
    with pytest.raises(GenerationFailed, match="could not read"):
        require_readable(to_sampling_params(SamplingOptions()), None, arguments)


@pytest.mark.parametrize(
    ("parser", "says"), [("no such", "Available parsers: .*qwen3"), ("deepseek_r1", "think")]
)
def test_a_parser_that_cannot_read_the_model_is_refused_at_the_start(
    demo_model: str, parser: str, says: str
):
    config = EngineConfig(model=demo_model, reasoning_parser=parser, vllm_args=SMALL)
    with pytest.raises(ConfigError, match=says):
        RAGCacheEngine(config)


@pytest.fixture(scope="module", params=["vllm", "server"])
def thinking(
    request: pytest.FixtureRequest,
    thinking_model: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RAGCacheEngine]:
    """An engine with a model that thinks: one in this process, and a client of `ragcache serve`."""
    if request.param == "vllm":
        config = EngineConfig(
            model=thinking_model,
            device_cache="100MiB",
            reasoning_parser="qwen3",
            vllm_args=SMALL,
        )
        with RAGCacheEngine(config) as engine:
            yield engine
        return
    sizes = ("--max-model-len", "1024", "--kv-cache-memory-bytes", str(100 << 20))
    with (
        ragcache_serve(
            thinking_model,
            tmp_path_factory.mktemp("server") / "log",
            vllm=("--dtype", "float32", *sizes, "--reasoning-parser", "qwen3"),
            environment={"RAGCACHE_OPERATOR_KEY": OPERATOR},
        ) as server,
        RAGCacheEngine.connect(server.url, api_key=OPERATOR) as engine,
    ):
        yield engine


def test_a_model_thinks_and_then_answers(thinking: RAGCacheEngine):
    assert thinking.config.reasoning_parser == "qwen3"
    prompt, options = thinking.chat.prompt(MESSAGES), SamplingOptions(max_tokens=16)
    answer = thinking.generate(prompt, options=options)
    assert answer.reasoning
    assert answer.text
    plain = thinking.generate(
        str(prompt), options=SamplingOptions(max_tokens=16, add_special_tokens=False)
    )
    assert answer.token_ids == plain.token_ids
    assert plain.text == f"{answer.reasoning}</think>{answer.text}"
    assert plain.reasoning == ""
    assert 0 < answer.usage.reasoning_tokens < answer.usage.output_tokens
    pieces = list(thinking.stream(prompt, options=options))
    assert "".join(piece.reasoning for piece in pieces) == answer.reasoning
    assert "".join(piece.text for piece in pieces) == answer.text
    assert sum(bool(piece.reasoning) for piece in pieces) > 1


def test_a_guide_begins_where_the_reasoning_ends(thinking: RAGCacheEngine):
    options = SamplingOptions(max_tokens=96, guide=Guide.json(CITY))
    answer = thinking.generate(thinking.chat.prompt(MESSAGES), options=options)
    assert answer.reasoning
    assert json.loads(answer.text)["city"] in ("Riga", "Oslo")


def test_without_reasoning_a_guide_begins_at_once(thinking: RAGCacheEngine):
    options = SamplingOptions(max_tokens=96, guide=Guide.json(CITY))
    quick = thinking.chat.prompt(MESSAGES, template_args={"enable_thinking": False})
    for prompt in (quick, "Where is it? As JSON:"):
        answer = thinking.generate(prompt, options=options)
        assert answer.reasoning == ""
        assert json.loads(answer.text)["city"] in ("Riga", "Oslo")


def test_a_forced_call_comes_behind_the_reasoning(thinking: RAGCacheEngine):
    tools = [{"type": "function", "function": {"name": "look", "parameters": CITY}}]
    options = thinking.chat.tool_options(SamplingOptions(max_tokens=96), tools, must_call=True)
    answer = thinking.generate(thinking.chat.prompt(MESSAGES), options=options)
    (call,) = thinking.chat.tool_reader(tools, must_call=True).whole(answer.text).calls
    assert answer.reasoning
    assert call.name == "look"
    assert json.loads(call.arguments)["city"] in ("Riga", "Oslo")
