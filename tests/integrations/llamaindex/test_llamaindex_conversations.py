"""LlamaIndex's messages in the form that a chat template takes."""

from time import monotonic, sleep
from types import SimpleNamespace

import pytest
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate

from ragcache_engine import EngineConfig, RAGCacheEngine, RefusedMessages
from ragcache_integrations.llamaindex import RAGCacheLLM
from ragcache_integrations.llamaindex.conversations import as_messages


@pytest.mark.parametrize(
    ("role", "known_as"),
    [
        (MessageRole.SYSTEM, "system"),
        (MessageRole.DEVELOPER, "system"),
        (MessageRole.USER, "user"),
        (MessageRole.ASSISTANT, "assistant"),
        (MessageRole.CHATBOT, "assistant"),
        (MessageRole.MODEL, "assistant"),
        (MessageRole.TOOL, "tool"),
        (MessageRole.FUNCTION, "tool"),
    ],
)
def test_every_role_has_a_name_that_templates_know(role, known_as):
    assert as_messages([ChatMessage("Why?", role=role)]) == [{"role": known_as, "content": "Why?"}]


def test_the_texts_of_a_message_are_joined_and_what_was_only_thought_is_left_out():
    message = ChatMessage(
        role="assistant",
        blocks=[ThinkingBlock(content="Hm."), TextBlock(text="One."), TextBlock(text="Two.")],
    )
    assert as_messages([message])[0]["content"] == "One.\nTwo."
    assert as_messages([ChatMessage(role="user", blocks=[])])[0]["content"] == ""


def test_a_tool_call_goes_along_as_openai_writes_it():
    call = ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={"at": "sky"})
    assert as_messages([ChatMessage(role="assistant", blocks=[call])]) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "look", "arguments": {"at": "sky"}},
                }
            ],
        }
    ]


CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}


@pytest.mark.parametrize(
    "call",
    [CALL, SimpleNamespace(**{**CALL, "function": SimpleNamespace(**CALL["function"])})],
    ids=["a dict", "an object of a client"],
)
def test_a_tool_call_without_a_block_goes_along_too(call):
    message = ChatMessage(role="assistant", additional_kwargs={"tool_calls": [call]})
    (written,) = as_messages([message])
    assert written["content"] is None
    assert written["tool_calls"] == [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "look", "arguments": {"at": "sky"}},
        }
    ]


def test_a_tool_call_is_written_once():
    call = ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={"at": "sky"})
    message = ChatMessage(role="assistant", blocks=[call], additional_kwargs={"tool_calls": [CALL]})
    assert len(as_messages([message])[0]["tool_calls"]) == 1


def test_what_an_answer_cost_stays_out():
    message = ChatMessage("Because.", role="assistant", additional_kwargs={"tokens": 7})
    assert as_messages([message]) == [{"role": "assistant", "content": "Because."}]


def test_a_picture_is_refused_by_name(engine):
    llm = RAGCacheLLM(engine=engine)
    picture = ChatMessage(role="user", blocks=[TextBlock(text="What?"), ImageBlock(image=b"")])
    with pytest.raises(RefusedMessages, match="image"):
        llm.chat([picture])
    with pytest.raises(RefusedMessages, match="image"):
        llm.stream_chat([picture])


def test_a_conversation_without_messages_is_refused(engine):
    with pytest.raises(RefusedMessages, match="empty"):
        RAGCacheLLM(engine=engine).chat([])


@pytest.mark.parametrize(("ttl", "for_s"), [("5m", 300), ("1h", 3600), ("soon", 300)])
def test_a_prompt_stays_cached_up_to_its_cache_points(engine, ttl, for_s):
    point = CachePoint(cache_control=CacheControl(type="ephemeral", ttl=ttl))
    blocks = [TextBlock(text="Rules."), point, TextBlock(text="Why?")]
    prompt = engine.chat.prompt(as_messages([ChatMessage(role="user", blocks=blocks)]))
    [(characters, told_s)] = prompt.cache_points
    assert prompt[:characters].endswith("Rules.")
    assert prompt[characters:].startswith("\nWhy?")
    assert told_s == for_s


@pytest.mark.parametrize("ask", [RAGCacheLLM.chat, lambda llm, said: list(llm.stream_chat(said))])
def test_an_answered_chat_is_kept_up_to_its_cache_point(ask):
    engine = RAGCacheEngine(EngineConfig(backend="memory", host_cache="1GiB"))
    point = CachePoint(cache_control=CacheControl(type="ephemeral", ttl="1h"))
    blocks = [TextBlock(text="Answer in one word. " * 20), point, TextBlock(text="Why?")]
    ask(RAGCacheLLM(engine=engine), [ChatMessage(role="user", blocks=blocks)])
    end = monotonic() + 10
    while not (kept := engine.kept()):
        assert monotonic() < end
        sleep(0.01)
    assert kept[0].held_tokens == kept[0].tokens > 0
    engine.close()


def test_a_cache_point_before_any_text_is_passed_over():
    point = CachePoint(cache_control=CacheControl(type="ephemeral"))
    message = ChatMessage(role="user", blocks=[point, TextBlock(text="Why?")])
    assert as_messages([message]) == [{"role": "user", "content": "Why?"}]


def test_a_citation_beside_an_answer_is_left_out():
    cited = {"cited_content": "The lake is 594 m deep.", "source": "s", "title": "t"}
    citation = CitationBlock(**cited, additional_location_info={})
    message = ChatMessage(role="assistant", blocks=[TextBlock(text="594 m."), citation])
    assert as_messages([message]) == [{"role": "assistant", "content": "594 m."}]


@pytest.mark.parametrize(
    "block",
    [
        CitableBlock(title="t", source="s", content="594 m."),
        DocumentBlock(data=b"594 m.", document_mimetype="text/plain"),
        CitableBlock(
            title="t",
            source="s",
            content=[DocumentBlock(data=b"594 m.", document_mimetype="text/plain")],
        ),
    ],
)
def test_the_text_of_a_document_is_read(block):
    message = ChatMessage(role="user", blocks=[TextBlock(text="How deep?"), block])
    assert as_messages([message])[0]["content"] == "How deep?\n594 m."


@pytest.mark.parametrize(
    "block",
    [
        DocumentBlock(data=b"%PDF-1.4", document_mimetype="application/pdf"),
        DocumentBlock(url="https://lakes.example/crater.txt", document_mimetype="text/plain"),
        CitableBlock(title="t", source="s", content=[DocumentBlock(data=b"%PDF-1.4")]),
    ],
)
def test_a_document_that_is_no_text_is_refused_by_name(engine, block):
    with pytest.raises(RefusedMessages, match="document"):
        RAGCacheLLM(engine=engine).chat([ChatMessage(role="user", blocks=[block])])


@pytest.mark.parametrize("written", ['{"at": "sk', "at the sky", ""])
def test_a_call_whose_arguments_are_no_json_goes_along_as_far_as_it_was_read(engine, written):
    call = ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs=written)
    (message,) = as_messages([ChatMessage(role="assistant", blocks=[call])])
    assert isinstance(message["tool_calls"][0]["function"]["arguments"], dict)
    told = ChatMessage("Which?", role="tool", additional_kwargs={"tool_call_id": "1"})
    asked = [ChatMessage("Look."), ChatMessage(role="assistant", blocks=[call]), told]
    assert RAGCacheLLM(engine=engine).chat(asked).message.content == "You asked: Which?"


CHAT = "<user>\nQ\n</user>\n<assistant>\n"
SYSTEM = "<system>\nS\n</system>\n"

# What the guide's table says: the prompt of each call without and with is_chat_model.
PROMPTS = {
    "complete": (lambda llm: llm.complete("Q"), "c(Q)", "c(Q)"),
    "chat": (lambda llm: llm.chat([ChatMessage("Q")]), CHAT, CHAT),
    "a chat engine": (lambda llm: SimpleChatEngine.from_defaults(llm=llm).chat("Q"), CHAT, CHAT),
    "predict": (
        lambda llm: llm.predict(PromptTemplate("{q}"), q="Q"),
        "w(S\n\nc(Q))",
        SYSTEM + CHAT,
    ),
    "predict with messages": (
        lambda llm: llm.predict(ChatPromptTemplate([ChatMessage("{q}")]), q="Q"),
        f"w(S\n\n{CHAT})",
        SYSTEM + CHAT,
    ),
}


@pytest.mark.parametrize("is_chat_model", [False, True])
@pytest.mark.parametrize("call", PROMPTS)
def test_each_call_writes_its_prompt_as_the_guide_says(engine, recorded, call, is_chat_model):
    llm = RAGCacheLLM(
        engine=engine,
        is_chat_model=is_chat_model,
        system_prompt="S",
        completion_to_prompt="c({})".format,
        query_wrapper_prompt=PromptTemplate("w({query_str})"),
    )
    ask, as_text, as_chat = PROMPTS[call]
    ask(llm)
    assert [prompt for prompt, _ in recorded] == [as_chat if is_chat_model else as_text]
