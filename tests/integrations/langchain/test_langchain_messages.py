"""LangChain's messages, with content of any vendor, in the form that a chat template takes."""

import base64

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from ragcache_engine import EngineConfig, RAGCacheEngine, RefusedMessages
from ragcache_integrations.langchain import ChatRAGCache
from ragcache_integrations.langchain.messages import conversation

TEXT = {"type": "text", "text": "594 m."}

BESIDE_THE_ANSWER = [
    {"type": "reasoning", "reasoning": "They ask for a depth."},
    {"type": "thinking", "thinking": "They ask for a depth.", "signature": "s"},
    {"type": "redacted_thinking", "data": "AAAA"},
    {"type": "reasoning_content", "reasoning_content": {"text": "They ask."}},
    {"reasoningContent": {"reasoningText": {"text": "They ask."}}},
    {"type": "tool_call_chunk", "id": "x", "name": "look_up", "args": "{", "index": 0},
    {"type": "invalid_tool_call", "id": "x", "name": "look_up", "args": "{", "error": None},
    {"type": "server_tool_call", "id": "x", "name": "web_search", "args": {}},
    {"type": "server_tool_call_chunk", "id": "x", "name": "web_search", "args": "{"},
    {"type": "server_tool_result", "tool_call_id": "x", "status": "success", "output": "594"},
    {"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}},
    {"type": "web_search_call", "id": "x", "status": "completed"},
    {"type": "executable_code", "executable_code": "1 + 1", "language": "python"},
    {"type": "citation", "url": "https://lakes.example", "cited_text": "594"},
    {"type": "non_standard", "value": {"type": "who knows"}},
    {"type": "who knows"},
]


def sent(*messages):
    return conversation(messages)


def known_as(block):
    return block.get("type", next(iter(block)))


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("block", BESIDE_THE_ANSWER, ids=known_as)
def test_what_a_model_did_beside_its_answer_is_left_out(block, version):
    answer = AIMessage([block, TEXT], response_metadata={"output_version": version})
    assert sent(answer) == [{"role": "assistant", "content": "594 m."}]
    assert sent(AIMessage([block])) == [{"role": "assistant", "content": ""}]


CALLS = [
    {"type": "tool_call", "id": "x", "name": "look_up", "args": {"lake": "Crater"}},
    {"type": "tool_use", "id": "x", "name": "look_up", "input": {"lake": "Crater"}},
    {
        "type": "function_call",
        "call_id": "x",
        "name": "look_up",
        "arguments": '{"lake": "Crater"}',
    },
]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("block", CALLS, ids=known_as)
def test_a_call_among_the_blocks_is_sent_once(block, is_known):
    calls = [{"name": "look_up", "args": {"lake": "Crater"}, "id": "x"}] if is_known else []
    (message,) = sent(AIMessage([TEXT, block], tool_calls=calls))
    function = {"name": "look_up", "arguments": '{"lake": "Crater"}'}
    assert message["content"] == "594 m."
    assert message["tool_calls"] == [{"type": "function", "id": "x", "function": function}]


def test_a_refusal_is_what_the_model_said():
    for answer, said in [
        (AIMessage([{"type": "refusal", "refusal": "I cannot."}]), "I cannot."),
        (AIMessage("", additional_kwargs={"refusal": "I cannot."}), "I cannot."),
        (AIMessage([{"type": "refusal", "refusal": ""}, TEXT]), "594 m."),
    ]:
        assert sent(answer)[0]["content"] == said


def test_an_answer_in_several_blocks_is_one_text():
    cited = {"type": "text", "text": "594", "citations": [{"type": "char_location"}]}
    noted = {"type": "text", "text": " m", "annotations": [{"type": "citation", "url": "u"}]}
    blocks = ["It is ", cited, noted, {"text": "."}]
    assert sent(AIMessage(blocks))[0]["content"] == "It is 594 m."


PLAIN = base64.b64encode(b"Tief, sehr tief: 594 m.").decode()


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text-plain", "mime_type": "text/plain", "text": "Tief, sehr tief: 594 m."},
        {"type": "text-plain", "mime_type": "text/plain", "base64": PLAIN},
        {
            "type": "document",
            "source": {
                "type": "text",
                "media_type": "text/plain",
                "data": "Tief, sehr tief: 594 m.",
            },
        },
        {"text": "Tief, sehr tief: 594 m."},
        {
            "type": "search_result",
            "source": "https://lakes.example",
            "title": "Tief, sehr tief: 594 m.",
            "content": [],
        },
        {
            "type": "search_result",
            "source": "https://lakes.example",
            "content": [{"type": "text", "text": "Tief, sehr tief: 594 m."}],
        },
        {
            "type": "document",
            "source": {
                "type": "content",
                "content": [{"type": "text", "text": "Tief, sehr tief: 594 m."}],
            },
        },
    ],
    ids=known_as,
)
@pytest.mark.parametrize("kind", [HumanMessage, SystemMessage])
def test_a_text_that_comes_as_a_document_is_read(kind, block):
    (message,) = sent(kind([{"type": "text", "text": "How deep?"}, block]))
    assert message["content"] == "How deep?\nTief, sehr tief: 594 m."


def test_what_a_tool_returned_in_blocks_is_read():
    blocks = [TEXT, {"type": "json", "json": {"deep": True}}, "So it is."]
    (message,) = sent(ToolMessage(blocks, tool_call_id="x"))
    assert message == {
        "role": "tool",
        "tool_call_id": "x",
        "content": '594 m.\n{"deep": true}\nSo it is.',
    }


BEDROCK = {"cachePoint": {"type": "default"}}


@pytest.mark.parametrize("kind", [HumanMessage, SystemMessage])
@pytest.mark.parametrize(
    ("hint", "behind", "for_s"),
    [
        ({"cache_control": {"type": "ephemeral"}}, [], 300),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, [], 3600),
        ({"cache_control": {"type": "ephemeral", "ttl": "0s"}}, [], 300),
        ({}, [BEDROCK], 300),
    ],
)
def test_a_prompt_stays_cached_up_to_a_hint_of_any_vendor(kind, hint, behind, for_s):
    marked = {"type": "text", "text": "The lake is deep.", **hint}
    messages = conversation([kind([marked, *behind, TEXT]), HumanMessage("How deep?")])
    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        prompt = engine.chat.prompt(messages)
    [(characters, told_s)] = prompt.cache_points
    assert prompt[:characters].endswith("The lake is deep.")
    assert "594 m." in prompt[characters:]
    assert told_s == for_s


def test_a_hint_before_any_text_is_passed_over():
    (message,) = sent(HumanMessage([BEDROCK, TEXT]))
    assert message["content"] == "594 m."


def test_results_within_a_question_become_messages_of_their_own():
    result = {"type": "tool_result", "tool_use_id": "x", "content": [TEXT]}
    assert sent(HumanMessage([result])) == [
        {"role": "tool", "tool_call_id": "x", "content": "594 m."}
    ]


def test_a_document_has_its_title_before_its_text():
    about = {"title": "Crater Lake", "context": "A guide of 2020."}
    plain = {"type": "text-plain", "mime_type": "text/plain", "text": "594 m.", **about}
    source = {"type": "text", "media_type": "text/plain", "data": "594 m."}
    for block in (plain, {"type": "document", "source": source, **about}):
        (message,) = sent(HumanMessage([block]))
        assert message["content"] == "Crater Lake\nA guide of 2020.\n594 m."


UNREADABLE = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
    {"type": "video", "url": "https://lakes.example/crater.mp4"},
    {"type": "file", "base64": "AAAA", "mime_type": "application/pdf"},
    {"type": "text-plain", "mime_type": "text/plain", "url": "https://lakes.example/crater.txt"},
]


def test_a_plain_text_that_cannot_be_decoded_is_refused():
    broken = base64.b64encode(b"\xff\xfe").decode()
    with pytest.raises(RefusedMessages, match="cannot read"):
        sent(HumanMessage([{"type": "text-plain", "mime_type": "text/plain", "base64": broken}]))


NO_TEXT_WITHIN = [
    {"type": "search_result", "source": "s", "title": "t", "content": [UNREADABLE[1]]},
    {"type": "document", "source": {"type": "content", "content": [UNREADABLE[1]]}},
]


@pytest.mark.parametrize("block", NO_TEXT_WITHIN, ids=known_as)
def test_a_document_that_is_no_text_is_refused_by_name(engine, block):
    with pytest.raises(RefusedMessages, match=block["type"]):
        ChatRAGCache(engine=engine).invoke([HumanMessage([TEXT, block])])


@pytest.mark.parametrize("block", UNREADABLE, ids=known_as)
@pytest.mark.parametrize("kind", [HumanMessage, SystemMessage, AIMessage])
def test_what_is_shown_and_cannot_be_read_is_refused_by_name(engine, kind, block):
    with pytest.raises(RefusedMessages, match=block["type"].removesuffix("_url")):
        ChatRAGCache(engine=engine).invoke([HumanMessage("Look."), kind([TEXT, block])])


@pytest.mark.parametrize(
    "block", [{"type": "who knows"}, {"whoKnows": {}}, {"type": "non_standard", "value": {}}]
)
def test_what_nobody_knows_is_refused_in_a_question(engine, block):
    with pytest.raises(RefusedMessages):
        ChatRAGCache(engine=engine).invoke([HumanMessage([TEXT, block])])
