"""Requests with the same beginnings have the same keys, whichever way they came."""

from __future__ import annotations

from typing import Any

from ragcache_engine.fleet.path import PIECE_CHARACTERS
from ragcache_engine.fleet_serving.request_paths import NOTHING, read_routable
from ragcache_engine.prompt import Span

TIDES, SKY = "The tides follow the moon. " * 20, "The sky is blue. " * 30
PROMPT = f"Use these.\n\n{TIDES}\n\n{SKY}\n\nWhy?"
SPANS = [
    [PROMPT.index(TIDES), PROMPT.index(TIDES) + len(TIDES), "tides"],
    [PROMPT.index(SKY), PROMPT.index(SKY) + len(SKY), "sky"],
]


def test_both_ways_to_name_documents_are_one():
    ours = read_routable({"prompt": PROMPT, "documents": SPANS}, None)
    openai = {"prompt": PROMPT, "kv_transfer_params": {"ragcache": {"documents": SPANS}}}
    assert read_routable(openai, None).path == ours.path
    assert [name for _, name in ours.documents] == ["tides", "sky"]
    assert len(ours.path.keys) == 3
    assert ours.prompt == PROMPT


def test_another_question_or_name_changes_nothing_and_another_text_does():
    path = read_routable({"prompt": PROMPT, "documents": SPANS}, None).path
    other = read_routable({"prompt": PROMPT[:-4] + "When?", "documents": SPANS}, None)
    assert other.path == path
    renamed = [[start, end, "x"] for start, end, _ in SPANS]
    assert read_routable({"prompt": PROMPT, "documents": renamed}, None).path == path
    changed = read_routable({"prompt": PROMPT.replace("moon", "noon"), "documents": SPANS}, None)
    assert changed.path.keys[0] == path.keys[0]
    assert changed.path.keys[1] != path.keys[1]


def test_tenants_are_told_apart_by_key_and_by_body():
    body = {"prompt": PROMPT, "documents": SPANS}
    keys = {
        read_routable({**body, **more}, tenant).path.keys[0]
        for tenant in (None, "shop")
        for more in ({}, {"tenant": "anna"})
    }
    assert len(keys) == 4
    salted = read_routable({**body, "cache_salt": "anna"}, "shop")
    assert salted.path == read_routable({**body, "tenant": "anna"}, "shop").path


def test_a_prompt_or_conversation_without_names_is_cut_into_pieces():
    text = "x" * (3 * PIECE_CHARACTERS + 5)
    assert len(read_routable({"prompt": text}, None).path.keys) == 4
    chat = {"messages": [{"role": "user", "content": text}]}
    assert len(read_routable(chat, None).path.keys) == 4
    tokens = read_routable({"prompt": list(range(2000))}, None)
    assert len(tokens.path.keys) > 4


def test_a_conversation_routes_alike_on_every_path():
    text = (TIDES + SKY) * 4
    parts = [{"type": "text", "text": text}]
    chat = read_routable({"messages": [{"role": "user", "content": text}]}, None)
    for body in (
        {"messages": [{"role": "user", "content": parts}]},
        {"input": text},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]},
    ):
        assert read_routable(body, None) == chat
    assert len(chat.path.keys) > 1
    for name in ("instructions", "system"):
        told = read_routable({name: text, "input": "Why?"}, None)
        assert told.path.keys[: len(chat.path.keys)] == chat.path.keys


def test_what_is_no_text_tells_conversations_apart():
    pictures = [
        {"messages": [{"content": [{"type": "image_url", "image_url": {"url": name}}]}]}
        for name in "ab"
    ]
    assert read_routable(pictures[0], None).prompt != read_routable(pictures[1], None).prompt


def test_bodies_without_sense_have_no_beginning():
    assert read_routable({}, None).path.keys == read_routable({"messages": 3}, None).path.keys
    wrong = {"prompt": "short", "documents": [[3, 1, "a"], [0, 99, "b"], "c"]}
    assert len(read_routable(wrong, None).path.keys) == 1
    assert NOTHING.size == 0


def test_documents_out_of_order_are_none_as_the_server_refuses_them_too():
    tides, sky = SPANS
    ordered = read_routable({"prompt": PROMPT, "documents": [sky]}, None)
    backwards = read_routable({"prompt": PROMPT, "documents": [sky, tides]}, None)
    assert backwards.path == ordered.path
    assert all(size >= 0 for size in backwards.path.sizes)


def test_registered_documents_route_a_conversation_and_a_completion_alike():
    first, second = "The moon pulls the oceans. ", "Rivers carry salt into the sea. "

    def find(text: str) -> list[Span]:
        found = [(text.find(one), one) for one in (first, second)]
        return [Span(at, at + len(one), one[:5]) for at, one in sorted(found) if at >= 0]

    def ask(*texts: str) -> dict[str, Any]:
        return {"messages": [{"content": "Read:\n" + "".join(texts) + "Why?"}]}

    both = read_routable(ask(first, second), None, find)
    assert [name for _, name in both.documents] == [first[:5], second[:5]]
    one = read_routable(ask(first), None, find)
    assert one.path.keys[:2] == both.path.keys[:2], "they share the first document"
    completion = read_routable({"prompt": ask(first, second)["messages"][0]["content"]}, None, find)
    assert completion.path == both.path
    named = {"prompt": f"Read:\n{first}", "documents": [[6, 6 + len(first), "mine"]]}
    assert [name for _, name in read_routable(named, None, find).documents] == ["mine"]
