"""Chat prompts, guided decoding and tool calls on real vLLM."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from innermost import innermost_backend

from ragcache_engine import (
    ConfigError,
    Guide,
    NoChatTemplate,
    RAGCacheEngine,
    RefusedMessages,
    SamplingOptions,
    UnsupportedGuide,
)

pytest.importorskip("vllm")

pytestmark = pytest.mark.vllm

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Why is the sky blue?"}],
    [
        {"role": "system", "content": "Be brief. äöü 🙂"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Why?"}, {"type": "text", "text": ""}],
        },
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": "Really?\n\n  Yes?"},
    ],
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


def tokens_of_the_endpoint(renderer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """What vLLM's own chat endpoint would ask its engine."""
    from vllm.renderers import ChatParams

    params = ChatParams(chat_template_kwargs={"add_generation_prompt": True})
    _, (prompt,) = renderer.render_chat([messages], params)
    return list(prompt["prompt_token_ids"])


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_a_conversation_has_the_tokens_of_vllms_own_endpoint(
    vllm_engine: RAGCacheEngine, messages: list[dict[str, Any]]
):
    renderer = innermost_backend(vllm_engine)._require_llm().renderer
    ours = vllm_engine.tokenize(vllm_engine.chat.prompt(messages))
    assert list(ours.token_ids) == tokens_of_the_endpoint(renderer, messages)
    assert ours.offsets


@pytest.fixture
def backend_on(demo_model: str, tmp_path: Path) -> Iterator[Any]:
    """(template, begins texts) -> a backend that reads as such a model would, and its renderer."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.renderers import renderer_from_config

    from ragcache_engine.backends.vllm.backend import VLLMBackend

    renderers = []

    def make(template: str | None, begins_texts: bool) -> tuple[Any, Any]:
        for file in Path(demo_model).glob("*"):
            if file.suffix != ".safetensors" and file.name != "chat_template.jinja":
                shutil.copy(file, tmp_path)
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        if begins_texts:
            add_first_token(tmp_path / "tokenizer.json")
        arguments = AsyncEngineArgs(model=str(tmp_path), max_model_len=512, block_size=32)
        renderer = renderer_from_config(arguments.create_engine_config())
        renderers.append(renderer)
        backend = VLLMBackend(str(tmp_path), None, None, {})  # type: ignore[arg-type]
        backend.attach(SimpleNamespace(renderer=renderer))  # type: ignore[arg-type]
        return backend, renderer

    yield make
    for renderer in renderers:
        renderer.shutdown()


def add_first_token(file: Path) -> None:
    tokenizer = json.loads(file.read_text())
    name = "<|endoftext|>"
    (first,) = (t["id"] for t in tokenizer["added_tokens"] if t["content"] == name)
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": name, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [first], "tokens": [name]}},
    }
    file.write_text(json.dumps(tokenizer))


WRITES_IT = "{{ '<|endoftext|>' }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
LEAVES_IT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("template", [WRITES_IT, LEAVES_IT], ids=["written", "not written"])
def test_a_first_token_is_neither_doubled_nor_added(backend_on: Any, template: str):
    from ragcache_engine.protocols import Conversation

    backend, renderer = backend_on(template, True)
    messages = CONVERSATIONS[0]
    text = backend.render(Conversation(messages))
    ours = list(backend.tokenize(text, add_special_tokens=False).token_ids)
    assert ours == tokens_of_the_endpoint(renderer, messages)
    assert len(backend.tokenize(text).token_ids) == len(ours) + 1


def test_a_model_without_a_chat_template_is_named(backend_on: Any):
    from ragcache_engine.protocols import Conversation

    backend, _ = backend_on(None, False)
    with pytest.raises(NoChatTemplate, match="chat_template"):
        backend.render(Conversation(CONVERSATIONS[0]))
    text = backend.render(Conversation(CONVERSATIONS[0], template=LEAVES_IT))
    assert text == "Why is the sky blue?"


def test_what_a_template_refuses_is_told_in_its_own_words(backend_on: Any):
    from ragcache_engine.protocols import Conversation

    backend, _ = backend_on("{{ raise_exception('No system message, please.') }}", False)
    with pytest.raises(RefusedMessages, match="No system message, please"):
        backend.render(Conversation(CONVERSATIONS[1]))


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def test_answers_keep_to_their_form(vllm_engine: RAGCacheEngine):
    prompt = vllm_engine.chat.prompt([{"role": "user", "content": "Who was Ada Lovelace?"}])

    def held(guide: Guide) -> str:
        options = SamplingOptions(max_tokens=48, guide=guide)
        return vllm_engine.generate(prompt, options=options).text

    assert json.loads(held(Guide.json(PERSON))).keys() == {"name", "age"}
    assert re.fullmatch("[0-9]{4}", held(Guide.regex("[0-9]{4}")))
    assert held(Guide.choice(["a poet", "a mathematician"])) in ("a poet", "a mathematician")
    assert held(Guide.grammar('root ::= "yes" | "no"')) in ("yes", "no")


@pytest.mark.parametrize(
    "guide",
    [
        Guide.json({"type": "objekt"}),
        Guide.regex("(["),
        Guide.grammar("this is no grammar"),
    ],
)
def test_a_form_that_cannot_be_kept_is_refused_before_any_work(
    vllm_engine: RAGCacheEngine, guide: Guide
):
    before = vllm_engine.stats()
    with pytest.raises(UnsupportedGuide, match="guide"):
        vllm_engine.stream("Who?", options=SamplingOptions(guide=guide))
    assert vllm_engine.stats() == before


def test_this_model_is_told_of_tools_in_words_and_held_to_a_call(vllm_engine: RAGCacheEngine):
    assert not vllm_engine.chat.takes_tools  # its template knows only messages
    question = [{"role": "user", "content": "What is 3 + 4? Use the tool."}]
    prompt = vllm_engine.chat.prompt(question, tools=TOOLS)
    assert "Add two numbers." in prompt
    options = vllm_engine.chat.tool_options(SamplingOptions(max_tokens=48), TOOLS, must_call=True)
    text = vllm_engine.generate(prompt, options=options).text
    (call,) = vllm_engine.chat.tool_reader(TOOLS, must_call=True).whole(text).calls
    assert call.name == "add"
    assert json.loads(call.arguments).keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("before", "is_call"),
    [
        (
            '{"name":"add","arguments":{"a":1,"b":2}}\n{"name":"add","arguments":{"a":3,"b":4}}\n',
            True,
        ),
        ('{"name":"Ada","age":36}\n{"name":"Alan","age":41}\n', False),
    ],
)
def test_beside_tools_the_model_calls_one_or_keeps_to_a_form(
    vllm_engine: RAGCacheEngine, before: str, is_call: bool
):
    form = SamplingOptions(max_tokens=48, guide=Guide.json(PERSON))
    options = vllm_engine.chat.tool_options(form, TOOLS)
    text = vllm_engine.generate(before, options=options).text
    read = vllm_engine.chat.tool_reader(TOOLS, is_guided=True).whole(text)
    assert bool(read.calls) == is_call
    written = read.calls[0].arguments if is_call else read.text
    assert json.loads(written).keys() == ({"a", "b"} if is_call else {"name", "age"})


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_vllms_own_parsers_read_calls(vllm_engine: RAGCacheEngine, size: int):
    from ragcache_engine.backends.vllm.tool_parsers import ParserReader, require_parser
    from ragcache_engine.chat.calls import join_parts

    with pytest.raises(ConfigError, match="hermes"):
        require_parser("no such parser")
    tokenizer = innermost_backend(vllm_engine)._require_llm().get_tokenizer()
    said = 'Well. <tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
    reader = ParserReader("hermes", tokenizer, TOOLS)
    parts = [
        reader.read(said[at : at + size], tokenizer.encode(said[at : at + size]))
        for at in range(0, len(said), size)
    ]
    streamed = join_parts([*parts, reader.end()])
    whole = ParserReader("hermes", tokenizer, TOOLS).whole(said)
    for answer in (streamed, whole):
        assert answer.text.strip() == "Well."
        assert [(c.name, json.loads(c.arguments)) for c in answer.calls] == [
            ("add", {"a": 3, "b": 4})
        ]
