"""Answers that keep to a form, on the engine without a model."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ragcache_engine import (
    BadRequest,
    GenerationFailed,
    Guide,
    RAGCacheEngine,
    SamplingOptions,
    UnsupportedGuide,
)
from ragcache_engine.backends.memory import MemoryBackend

EngineOn = Callable[..., RAGCacheEngine]

PERSON = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/Name"}, "age": {"type": "integer", "minimum": 18}},
    "required": ["name", "age"],
    "$defs": {"Name": {"type": "string", "minLength": 6}},
}


def test_guides_that_say_the_same_are_equal_and_hash_alike():
    assert Guide.json(PERSON) == Guide.json(json.dumps(PERSON))
    assert len({Guide.choice(["a", "b"]), Guide.choice(("a", "b")), Guide.regex("a")}) == 2
    assert Guide.json({"a": 1, "b": 2}) != Guide.json({"b": 2, "a": 1})


def test_sampling_options_differ_by_their_guide():
    assert SamplingOptions(guide=Guide.regex("a")) != SamplingOptions()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Guide.json("no json"),
        lambda: Guide.json("[1]"),
        lambda: Guide.regex(""),
        lambda: Guide.choice([]),
        lambda: Guide.choice("yes"),
        lambda: Guide("json", "{}"),  # type: ignore[arg-type]
        lambda: SamplingOptions(guide="[a-z]"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_guide_is_refused_at_birth(wrong: Callable[[], object]):
    with pytest.raises(ValueError, match=r"guide|choice|form"):
        wrong()


def test_without_a_model_something_small_fits_the_schema(memory_engine: RAGCacheEngine):
    answer = memory_engine.generate("Who?", options=SamplingOptions(guide=Guide.json(PERSON)))
    assert json.loads(answer.text) == {"name": "text..", "age": 18}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 7}, 7),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        ({"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 1}, ["te"]),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "number", "maximum": -1.5}, -1.5),
        ({"type": ["null", "string"]}, None),
    ],
)
def test_the_value_fits_each_kind_of_schema(
    memory_engine: RAGCacheEngine, schema: dict[str, object], value: object
):
    options = SamplingOptions(guide=Guide.json(schema))
    assert json.loads(memory_engine.generate("Who?", options=options).text) == value


def test_a_reply_that_is_json_is_left_as_it_is(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(lambda prompt: '{"name": "Ada"}'))
    options = SamplingOptions(guide=Guide.json(PERSON))
    assert engine.generate("Who?", options=options).text == '{"name": "Ada"}'


def test_a_choice_is_the_one_in_the_reply_or_the_first(engine_on: EngineOn):
    engine = engine_on(MemoryBackend())
    options = SamplingOptions(guide=Guide.choice(["red", "blue"]))
    assert engine.generate("Is it blue?", options=options).text == "blue"
    assert engine.generate("Is it green?", options=options).text == "red"


@pytest.mark.parametrize(
    "guide",
    [
        Guide.regex("[0-9]+"),
        Guide.grammar('root ::= "a"'),
        Guide.json({"type": "string", "pattern": "a+"}),
        Guide.json({"$ref": "#"}),
        Guide.json({"$ref": "#/$defs/Missing"}),
    ],
)
def test_a_guide_that_cannot_be_kept_is_refused_before_any_work(
    memory_engine: RAGCacheEngine, guide: Guide
):
    with pytest.raises(UnsupportedGuide, match="memory backend") as refused:
        memory_engine.stream("Who?", options=SamplingOptions(guide=guide))
    assert isinstance(refused.value, BadRequest)
    assert memory_engine.stats().running == 0


def failing_once(step: int) -> Callable[[int], None]:
    def fault(number: int) -> None:
        if number == step:
            raise GenerationFailed("a step broke")

    return fault


@pytest.mark.parametrize("step", range(8))
def test_a_guided_answer_that_fails_in_the_middle_has_no_gap_and_no_repeat(
    engine_on: EngineOn, step: int
):
    engine = engine_on(MemoryBackend(fault=failing_once(step)))
    options = SamplingOptions(guide=Guide.json(PERSON))
    pieces = list(engine.stream("Who?", options=options))
    assert json.loads("".join(piece.text for piece in pieces)) == {"name": "text..", "age": 18}
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.output_tokens == sum(len(piece.token_ids) for piece in pieces)
    assert engine.stats().retried == 1


def test_a_guided_answer_that_is_another_the_second_time_is_told(engine_on: EngineOn):
    replies = iter(['{"name": "Ada", "age": 36}', '{"nick": "Bob", "age": 36}'])
    engine = engine_on(MemoryBackend(lambda prompt: next(replies), fault=failing_once(4)))
    with pytest.raises(GenerationFailed, match="drew another one"):
        engine.generate("Who?", options=SamplingOptions(guide=Guide.json(PERSON)))
