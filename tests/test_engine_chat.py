"""Conversations as prompts, on the engine without a model."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ragcache_engine import (
    ChatPrompt,
    Document,
    EngineConfig,
    RAGCacheEngine,
    RefusedMessages,
    SamplingOptions,
)
from ragcache_engine.backends.memory import MemoryBackend

EngineOn = Callable[..., RAGCacheEngine]

SKY = Document("sky", "The sky looks blue because the air scatters short waves of sunlight.")
QUESTION = [
    {"role": "system", "content": f"Use this.\n{SKY.text}"},
    {"role": "user", "content": "Why is the sky blue?"},
]


def test_a_conversation_is_written_and_answered(memory_engine: RAGCacheEngine):
    prompt = memory_engine.chat.prompt(QUESTION)
    assert prompt.endswith("<user>\nWhy is the sky blue?\n</user>\n<assistant>\n")
    assert memory_engine.generate(prompt).text == "You asked: Why is the sky blue?"


def test_documents_are_recognised_in_it(memory_engine: RAGCacheEngine):
    usage = memory_engine.generate(memory_engine.chat.prompt(QUESTION), [SKY]).usage
    assert usage.document_ids == ("sky",)


def test_texts_in_parts_are_texts(memory_engine: RAGCacheEngine):
    parts = [{"role": "user", "content": ["One.", {"type": "text", "text": "Two."}]}]
    assert "One.\nTwo." in memory_engine.chat.prompt(parts)


@pytest.mark.parametrize(
    "answer",
    [
        {"content": [{"type": "refusal", "refusal": "I cannot."}]},
        {"content": None, "refusal": "I cannot."},
    ],
)
def test_a_refusal_is_what_the_model_said(
    memory_engine: RAGCacheEngine, answer: dict[str, object]
) -> None:
    prompt = memory_engine.chat.prompt([*QUESTION, {"role": "assistant", **answer}])
    assert "<assistant>\nI cannot.\n</assistant>" in prompt


def test_a_call_whose_arguments_are_no_json_is_refused_by_name(
    memory_engine: RAGCacheEngine,
) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "sk'}}
    with pytest.raises(RefusedMessages, match="look"):
        memory_engine.chat.prompt([*QUESTION, {"role": "assistant", "tool_calls": [call]}])


def test_the_last_message_may_be_left_open(memory_engine: RAGCacheEngine):
    begun = [*QUESTION, {"role": "assistant", "content": "Because"}]
    prompt = memory_engine.chat.prompt(
        begun, add_generation_prompt=False, continue_final_message=True
    )
    assert prompt.endswith("<assistant>\nBecause")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "empty"),
        ([{"content": "no role"}], "role"),
        ([{"role": "user"}], "must be text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
        ([{"role": "user", "content": [3]}], "int"),
    ],
)
def test_what_is_no_conversation_of_texts_is_refused(
    memory_engine: RAGCacheEngine, messages: list[dict[str, object]], why: str
):
    with pytest.raises(RefusedMessages, match=why):
        memory_engine.chat.prompt(messages)


def test_a_message_gone_on_with_and_one_begun_exclude_each_other(memory_engine: RAGCacheEngine):
    with pytest.raises(RefusedMessages, match="add_generation_prompt"):
        memory_engine.chat.prompt(QUESTION, continue_final_message=True)


class BeginsTexts(MemoryBackend):
    """Its tokenizer puts a token before each text, as those of many models do."""

    def tokenize(self, text: str, add_special_tokens: bool = True):  # type: ignore[no-untyped-def]
        return super().tokenize(f"<s> {text}" if add_special_tokens else text)


def test_a_chat_prompt_gets_no_special_tokens(engine_on: EngineOn):
    engine = engine_on(BeginsTexts())
    prompt = engine.chat.prompt(QUESTION)
    plain = engine.generate(str.__str__(prompt)).usage.prompt_tokens
    chat = engine.generate(prompt).usage.prompt_tokens
    asked = engine.generate(
        "".join(prompt), options=SamplingOptions(add_special_tokens=False)
    ).usage.prompt_tokens
    assert isinstance(prompt, ChatPrompt)
    assert chat == asked == len(engine.tokenize(prompt)) < plain


def test_a_chat_prompt_is_foreseen_and_adopted(engine_on: EngineOn):
    engine = engine_on(BeginsTexts(), speculation="on")

    def ask(question: str) -> str:
        with engine.retrieval(question, chain="a") as retrieval:
            retrieval.found([SKY])
        messages = [QUESTION[0], {"role": "user", "content": question}]
        return engine.generate(engine.chat.prompt(messages)).text

    ask("Why is the sky blue?")
    started = engine.stats().speculation.started
    with engine.retrieval("When is it red?", chain="a") as retrieval:
        retrieval.provisional([SKY])
        while engine.stats().speculation.started == started:
            time.sleep(0.001)
        retrieval.found([SKY])
    messages = [QUESTION[0], {"role": "user", "content": "When is it red?"}]
    assert engine.generate(engine.chat.prompt(messages)).text == "You asked: When is it red?"
    assert engine.stats().speculation.adopted == 1


def test_an_explicit_template_may_write_a_chat_prompt(engine_on: EngineOn):
    engine = engine_on(BeginsTexts(), speculation="on")

    def template(question: str, documents: object) -> str:
        return engine.chat.prompt([QUESTION[0], {"role": "user", "content": question}])

    with engine.retrieval("When is it red?", template=template) as retrieval:
        retrieval.provisional([SKY])
        while not engine.stats().speculation.started:
            time.sleep(0.001)
        retrieval.found([SKY])
    messages = [QUESTION[0], {"role": "user", "content": "When is it red?"}]
    engine.generate(engine.chat.prompt(messages))
    assert engine.stats().speculation.adopted == 1


def test_a_chat_template_may_be_given_as_text_or_as_a_file(tmp_path):  # type: ignore[no-untyped-def]
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    for given in ("{{ messages }}", str(file), file):
        config = EngineConfig(model="any", backend="memory", chat_template=given)
        assert config.chat_template == "{{ messages }}"
    with pytest.raises(ValueError, match="chat_template"):
        EngineConfig(model="any", chat_template="missing.jinja")


def test_the_memory_backend_has_one_form_only(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(), chat_template="{{ messages }}")
    with pytest.raises(RefusedMessages, match="chat_template"):
        engine.chat.prompt(QUESTION)


def test_the_old_names_on_the_engine_warn_and_still_work(memory_engine: RAGCacheEngine):
    for old, new in (
        ("chat_prompt", "prompt"),
        ("takes_tools", "takes_tools"),
        ("tool_options", "tool_options"),
        ("tool_reader", "tool_reader"),
    ):
        with pytest.warns(DeprecationWarning, match=f"engine.chat.{new}"):
            assert getattr(memory_engine, old) == getattr(memory_engine.chat, new)
