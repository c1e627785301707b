"""Which options of a stock model are carried over, under which names, and which are refused."""

from types import SimpleNamespace

import pytest

from ragcache_engine import EngineConfig, InvalidArgument
from ragcache_integrations.acceleration import (
    CannotCarry,
    carry_options,
    find_model_name,
    is_model_of,
    rename_options,
    settle_temperature,
)
from ragcache_integrations.acceleration.stock_options import check_options


def model(**attributes):
    return SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"max_tokens": 64}, {"max_new_tokens": 64}),
        ({"max_completion_tokens": 64}, {"max_new_tokens": 64}),
        ({"num_predict": 64}, {"max_new_tokens": 64}),
        ({"stop_sequences": ["."]}, {"stop": ["."]}),
        ({"temperature": None}, {}),
        ({"max_tokens": None}, {"max_new_tokens": None}),
        ({"max_tokens": -1}, {"max_new_tokens": None}),
        ({"model_kwargs": {"top_p": 0.5}}, {"top_p": 0.5}),
        ({"seed": 1, "extra_body": {"seed": 2, "top_k": 5}}, {"seed": 2, "top_k": 5}),
        ({"extra_body": {"chat_template_kwargs": {"a": 1}}}, {"template_args": {"a": 1}}),
        ({"pipeline_kwargs": {"do_sample": False}}, {"temperature": 0}),
        ({"generate_kwargs": {"top_k": 5}, "model_kwargs": {"dtype": "auto"}}, {"top_k": 5}),
        ({"best_of": 1, "use_beam_search": False, "logit_bias": {}, "logprobs": None}, {}),
        ({"base_url": "http://a", "api_key": "b", "timeout": 3, "max_retries": 2}, {}),
    ],
)
def test_options_with_the_same_meaning_are_carried_under_our_names(theirs, ours):
    assert carry_options(model(**theirs)) == ours


def test_a_method_is_no_option():
    assert carry_options(model(stop=lambda: None, format=str.format)) == {}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"logit_bias": {5: 1.0}}, "logit_bias"),
        ({"best_of": 3}, "best_of=3"),
        ({"logprobs": True}, "logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"model_kwargs": {"stop_token_ids": [3]}}, "stop_token_ids"),
        ({"pipeline_kwargs": {"num_beams": 4}}, "num_beams=4"),
        ({"max_tokens": 3, "max_new_tokens": 4}, "two values for max_new_tokens"),
    ],
)
def test_an_option_that_the_engine_lacks_is_named(options, named):
    with pytest.raises(CannotCarry, match=named):
        carry_options(model(**options))


@pytest.mark.parametrize(
    ("options", "attributes", "settled"),
    [
        ({"temperature": 0.5}, {}, {"temperature": 0.5}),
        ({}, {}, {"temperature": 0}),
        ({}, {"temperature": None}, {}),
        ({"temperature": 0}, {"pipeline_kwargs": {}}, {"temperature": 0}),
    ],
)
def test_a_class_that_knows_no_temperature_is_taken_to_be_greedy(options, attributes, settled):
    assert settle_temperature(options, model(**attributes)) == settled


def test_a_model_of_hugging_face_must_say_how_it_samples():
    with pytest.raises(CannotCarry, match="do_sample"):
        settle_temperature({}, model(temperature=None), model(pipeline_kwargs={}))


def test_the_callers_options_are_checked_and_may_have_other_models_names():
    check_options({"temperature": 0, "max_tokens": 5})
    assert rename_options({"temperature": 0, "max_tokens": 5}) == {
        "temperature": 0,
        "max_new_tokens": 5,
    }
    with pytest.raises(InvalidArgument, match="got colour"):
        check_options({"colour": "red"})
    with pytest.raises(ValueError, match="temperature"):
        check_options({"temperature": -1})


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ({"model_name": "a/b", "model": "c"}, "a/b"),
        ({"model": "c"}, "c"),
        ({"model_id": "d"}, "d"),
        ({"model": ""}, None),
        ({"model": object()}, None),
        ({}, None),
    ],
)
def test_a_model_names_the_model_that_it_asks_for(attributes, name):
    assert find_model_name(model(**attributes)) == name


@pytest.mark.parametrize(
    ("name", "is_same"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", True),
        ("/models/qwen2.5-7b-instruct/", True),
        ("assistant", True),
        ("Qwen/Qwen2.5-7B", False),
        ("gpt-4o", False),
    ],
)
def test_the_last_part_of_a_name_tells_the_model(name, is_same):
    config = EngineConfig(
        model="Qwen/Qwen2.5-7B-Instruct",
        backend="vllm",
        vllm_args={"served_model_name": ["assistant"]},
    )
    assert is_model_of(config, name) == is_same


def test_the_name_that_the_engine_shows_is_the_models_too():
    config = EngineConfig(model="/models/tiny", backend="vllm", served_model_name="shop-model")
    assert is_model_of(config, "shop-model")
    assert is_model_of(config, "tiny")


@pytest.mark.parametrize("unnamed", [{}, {"model": "any"}])
def test_an_engine_without_a_model_stands_for_any_if_it_names_none(unnamed):
    assert is_model_of(EngineConfig(backend="memory", **unnamed), "gpt-4o")


def test_an_engine_without_a_model_decides_as_the_model_would_that_it_names():
    config = EngineConfig(model="Qwen/Qwen2.5-7B-Instruct", backend="memory")
    assert is_model_of(config, "/models/qwen2.5-7b-instruct")
    assert not is_model_of(config, "gpt-4o")
