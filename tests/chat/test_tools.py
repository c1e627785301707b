"""Tools: how a model is told of them, held to a call, and how its calls are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import BadRequest, Guide, RAGCacheEngine, SamplingOptions
from ragcache_engine.chat.calls import CallReader, GuidedReader, join_parts
from ragcache_engine.chat.schema_samples import make_sample
from ragcache_engine.chat.tools import call_guide, call_or_answer_guide, describe_tools

LEVEL = {"enum": ["low", "high"]}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "how": {"$ref": "#/$defs/Level"}},
            "required": ["a", "how"],
            "$defs": {"Level": LEVEL},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
WRITTEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_a_form_for_calls_keeps_each_tools_own_schema():
    schema = call_guide([ADD, NOW]).schema
    first, second = schema["anyOf"]
    assert make_sample({**first, "$defs": schema["$defs"]}) == {
        "name": "add",
        "arguments": {"a": 0, "how": "low"},
    }
    assert make_sample(second) == {"name": "now", "arguments": {}}
    assert schema["$defs"] == {"add.Level": LEVEL}


def test_a_tool_may_be_named_and_must_be_there():
    assert make_sample(call_guide([ADD, NOW], "now").schema)["name"] == "now"
    with pytest.raises(BadRequest, match="'add', 'now'"):
        call_guide([ADD, NOW], "sub")
    with pytest.raises(BadRequest, match="none"):
        call_guide([])


def test_beside_the_forms_of_calls_an_answers_form_keeps_its_own_definitions():
    depth = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Level"}}, "required": ["at"]}
    other = {"enum": ["deep", "shallow"]}
    schema = call_or_answer_guide(
        [ADD, NOW], Guide.json({**depth, "$defs": {"Level": other}})
    ).schema
    assert make_sample(schema) == {"at": "deep"}
    assert len(schema["anyOf"]) == 3
    assert sorted(schema["$defs"].values(), key=str) == sorted([LEVEL, other], key=str)
    assert len(call_or_answer_guide([NOW], Guide.json(depth)).schema["anyOf"]) == 2


def test_a_schema_that_refers_to_its_own_parts_still_does_in_the_form_for_calls():
    place = {"type": "string", "enum": ["Bath", "York"]}
    properties = {"from": place, "to": {"$ref": "#/properties/from"}}
    parameters = {"type": "object", "properties": properties, "required": ["from", "to"]}
    travel = {"type": "function", "function": {"name": "travel", "parameters": parameters}}
    expected = {"name": "travel", "arguments": {"from": "Bath", "to": "Bath"}}
    assert make_sample(call_guide([travel, NOW], "travel").schema) == expected
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}
    form = call_or_answer_guide([NOW], Guide.json(tree)).schema
    (name,) = form["$defs"]
    assert form["$defs"][name]["properties"]["child"] == {"$ref": f"#/$defs/{name}"}


def test_half_of_a_characters_code_in_a_call_leaves_text_that_can_be_encoded():
    reader = CallReader()
    written = '<tool_call>\n{"name": "add", "arguments": {"a": "hi \\ud83d"}}\n</tool_call>'
    (call,) = join_parts([reader.read(written), reader.end()]).calls
    assert json.loads(call.arguments.encode()) == {"a": "hi ?"}


@pytest.mark.parametrize("guide", [Guide.regex("[0-9]+"), Guide.choice(["a", "b"])])
def test_a_form_that_is_no_json_leaves_no_room_for_calls(guide: Guide):
    with pytest.raises(BadRequest, match=guide.kind.value):
        call_or_answer_guide([ADD], guide)


def test_a_template_without_a_place_for_tools_gets_them_in_words():
    told = describe_tools(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "2", "tool_call_id": "x"},
        ],
        [ADD],
    )
    assert told[0]["content"].startswith("Be brief.\n\n")
    assert '"name": "add"' in told[0]["content"]
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[2]["content"] == WRITTEN
    assert told[3]["content"] == "<tool_response>\n2\n</tool_response>"
    assert describe_tools([{"role": "user", "content": "1?"}], [ADD])[0]["role"] == "system"


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


ANSWERS: list[tuple[str, str, list[tuple[str, Any]]]] = [
    ("Only words.", "Only words.", []),
    (WRITTEN, "", [("add", {"a": 1})]),
    (f"First.\n{WRITTEN}\n{WRITTEN}", "First.", [("add", {"a": 1})] * 2),
    (f"{WRITTEN} Then.", " Then.", [("add", {"a": 1})]),
    (f"{WRITTEN}\nThen.", "Then.", [("add", {"a": 1})]),
    (f"{WRITTEN}\n", "", [("add", {"a": 1})]),
    (WRITTEN.removesuffix("</tool_call>"), "", [("add", {"a": 1})]),
    ("<tool_call>no</tool_call>", "<tool_call>no</tool_call>", []),
    ("a < b <tool", "a < b <tool", []),
    ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
    (
        '<tool_call>[{"name": "add", "arguments": {}}, {"name": "now"}]</tool_call>',
        "",
        [("add", {}), ("now", {})],
    ),
    ("<tool_call>[3]</tool_call>", "<tool_call>[3]</tool_call>", []),
    ('<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
]


@pytest.mark.parametrize(("answer", "text", "calls"), ANSWERS)
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_calls_are_read_however_the_answer_comes_in_pieces(
    answer: str, text: str, calls: list[tuple[str, Any]], size: int
):
    reader = CallReader()
    read = join_parts([*(reader.read(piece) for piece in pieces(answer, size)), reader.end()])
    assert read.text == text
    assert [(call.name, json.loads(call.arguments)) for call in read.calls] == calls
    assert len({call.id for call in read.calls}) == len(calls)
    assert CallReader().whole(answer).text == text


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "now"}', "\n", "a", "<"]))
)
def test_pieces_are_read_as_the_whole_is(parts: list[str]):
    def shown(pieces: list[str]) -> tuple[str, list[str]]:
        reader = CallReader()
        read = join_parts([*map(reader.read, pieces), reader.end()])
        return read.text, [call.name for call in read.calls]

    assert shown(parts) == shown(["".join(parts)]) == shown(list("".join(parts)))


@pytest.mark.parametrize("inside", ["", '{"name": "now"}', "[" * 20_000])
def test_an_answer_of_many_calls_is_read_once(inside: str):
    # Read again for each call, this would not end.
    answer = f"<tool_call>{inside}</tool_call>" * (2_000_000 // (len(inside) + 23))
    read = CallReader().whole(answer)
    assert len(read.calls) == (answer.count(inside) if "name" in inside else 0)
    assert read.text == ("" if read.calls else answer)


@pytest.mark.parametrize("reader", [CallReader(), GuidedReader()])
def test_a_long_call_in_many_pieces_is_read_once(reader: CallReader | GuidedReader):
    # Read again with each piece, this would not end.
    head = "<tool_call>" if isinstance(reader, CallReader) else ""
    parts = [head, '{"name": "', *["now and then "] * 200_000, '", "arguments": {}}']
    if head:
        parts.append("</tool_call>")
    (call,) = join_parts([*map(reader.read, parts), reader.end()]).calls
    assert call.name == "now and then " * 200_000


@given(st.text(alphabet="<>tol_ca/\n{}"), st.integers(1, 5))
def test_text_without_calls_is_never_changed(text: str, size: int):
    reader = CallReader()
    read = join_parts([*(reader.read(piece) for piece in pieces(text, size)), reader.end()])
    assert (read.text, read.calls) == (text, ())


def test_a_call_that_was_cut_off_is_told_as_far_as_it_goes():
    (call,) = GuidedReader().whole('{"name": "add", "arguments": {"a": 12').calls
    assert (call.name, call.arguments) == ("add", '{"a": 12')
    assert GuidedReader().whole('{"na').text == '{"na'


GUIDED = [
    ('{"name": "add", "arguments": {"a": 1}}', "add", '{"a": 1}'),
    ('\n{ "name":"add",\n"arguments" : {"a": {"b": []}} }\n', "add", '{"a": {"b": []}}'),
    (
        r'{"name": "say", "arguments": {"t": "\"}{\\", "u": "]"}}',
        "say",
        r'{"t": "\"}{\\", "u": "]"}',
    ),
    ('{"name": "now", "arguments": {}}', "now", "{}"),
    ('{"name": "add", "arguments": {"a": 12', "add", '{"a": 12'),
    ('{"name": "add", "arguments": ', "add", ""),
    ('{"arguments": {"a": 1}, "name": "add"}', "add", '{"a": 1}'),
]


@pytest.mark.parametrize(("answer", "name", "arguments"), GUIDED)
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_guided_call_is_read_however_it_comes_in_pieces(
    answer: str, name: str, arguments: str, size: int
):
    reader = GuidedReader()
    read = join_parts([*(reader.read(piece) for piece in pieces(answer, size)), reader.end()])
    assert read.text == ""
    assert [(call.name, call.arguments) for call in read.calls] == [(name, arguments)]
    assert [call.name for call in GuidedReader().whole(answer).calls] == [name]


def test_the_arguments_of_a_guided_call_are_told_while_they_are_written():
    reader = GuidedReader()
    told = [reader.read(piece) for piece in ('{"name": "add", "argu', 'ments": {"a"', ": 1", "}}")]
    assert [[call.arguments for call in part.calls] for part in told] == [
        [],
        ['{"a"'],
        [": 1"],
        ["}"],
    ]
    assert [(call.name, bool(call.id)) for part in told for call in part.calls] == [
        ("add", True),
        (None, False),
        (None, False),
    ]
    assert not reader.end().calls


@pytest.mark.parametrize(("answer", "name", "arguments"), GUIDED[:-1])
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_call_is_told_from_an_answer_however_it_comes_in_pieces(
    answer: str, name: str, arguments: str, size: int
):
    reader = GuidedReader(frozenset({"add", "say", "now"}))
    read = join_parts([*(reader.read(piece) for piece in pieces(answer, size)), reader.end()])
    assert read.text == ""
    assert [(call.name, call.arguments) for call in read.calls] == [(name, arguments)]


@pytest.mark.parametrize(
    "answer",
    [
        '{"metres": 594}',
        '{"name": "blue", "red": 3}',
        '{"name": "sub", "arguments": {}}',
        '{"name": "add"}',
        '{"name": "add", "red": 3}',
        '{"name": 3}',
        "{}",
        '{ "na',
        "[1, 2]",
        "",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_that_is_no_call_of_a_tool_is_never_changed(answer: str, size: int):
    reader = GuidedReader(frozenset({"add"}))
    read = join_parts([*(reader.read(piece) for piece in pieces(answer, size)), reader.end()])
    assert (read.text, read.calls) == (answer, ())
    assert GuidedReader(frozenset({"add"})).whole(answer).text == answer


def test_an_answer_is_told_as_soon_as_it_is_no_call():
    reader = GuidedReader(frozenset({"add"}))
    told = [reader.read(piece).text for piece in ('{"me', 'tres"', ": 5", "94}")]
    assert told == ["", '{"metres"', ": 5", "94}"]
    reader = GuidedReader(frozenset({"add"}))
    told = [reader.read(piece).text for piece in ('{"name": "', 'blue"', ', "r', 'ed": 3}')]
    assert told == ["", '{"name": "blue"', ', "r', 'ed": 3}']


@given(st.text(alphabet='{}[]":,\\ name1'), st.integers(1, 5))
def test_text_that_is_no_guided_call_is_never_changed(text: str, size: int):
    reader = GuidedReader()
    read = join_parts([*(reader.read(piece) for piece in pieces(text, size)), reader.end()])
    assert (read.text, read.calls) == (text, ())


def test_the_engine_holds_a_model_to_a_call(memory_engine: RAGCacheEngine):
    prompt = memory_engine.chat.prompt([{"role": "user", "content": "1?"}], tools=[ADD, NOW])
    options = memory_engine.chat.tool_options(SamplingOptions(), [ADD, NOW], name="now")
    text = memory_engine.generate(prompt, options=options).text
    answer = memory_engine.chat.tool_reader([ADD, NOW], must_call=True).whole(text)
    assert [(call.name, call.arguments) for call in answer.calls] == [("now", "{}")]
    assert memory_engine.chat.takes_tools
    assert memory_engine.chat.tool_options(SamplingOptions(), [ADD]) == SamplingOptions()
