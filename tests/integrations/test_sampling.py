import pytest
from pydantic import ValidationError

from ragcache_engine import BadRequest, SamplingOptions
from ragcache_integrations.sampling import SamplingFields


def test_the_defaults_are_those_of_the_frameworks_vllm_classes():
    assert SamplingFields().sampling_options() == SamplingOptions(max_tokens=512, temperature=1.0)


def test_every_parameter_reaches_the_engine():
    fields = SamplingFields(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        max_new_tokens=5,
        stop=["."],
        ignore_eos=True,
        seed=3,
    )
    assert fields.sampling_options() == SamplingOptions(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        seed=3,
        stop=(".",),
        ignore_eos=True,
    )


@pytest.mark.parametrize("name", ["max_tokens", "max_new_tokens", "max_completion_tokens"])
def test_max_new_tokens_has_other_names_when_made_and_when_called(name):
    assert SamplingFields(**{name: 9}).sampling_options().max_tokens == 9
    assert SamplingFields().sampling_options({name: 9}).max_tokens == 9


def test_two_names_with_two_values_are_refused():
    with pytest.raises(
        BadRequest, match="max_tokens=9 and max_completion_tokens=8: give one of them"
    ):
        SamplingFields().sampling_options({"max_tokens": 9, "max_completion_tokens": 8})


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ({"timeout": 30}, "request_timeout_s in the engine's configuration"),
        ({"request_timeout": 30}, "request_timeout_s in the engine's configuration"),
        ({"max_retries": 2}, "the engine itself tries a failed request once more"),
        ({"logprobs": True}, "SamplingOptions have log probabilities"),
        ({"top_logprobs": 3}, "SamplingOptions have log probabilities"),
        ({"response_format": {"type": "json_object"}}, "guide=Guide.json"),
        ({"model": "other"}, "model in the engine's configuration"),
    ],
    ids=str,
)
def test_what_other_chat_models_take_is_refused_with_what_to_do_instead(asked, advice):
    (name,) = asked
    with pytest.raises(BadRequest, match=f"{name}.*{advice}"):
        SamplingFields().sampling_options(asked)
    with pytest.raises(ValidationError, match=f"{name}.*{advice}"):
        SamplingFields(**asked)


def test_a_call_wins_over_the_constructor():
    options = SamplingFields(temperature=0.1, top_k=5).sampling_options({"temperature": 0.9})
    assert (options.temperature, options.top_k) == (0.9, 5)


def test_a_single_stop_string_is_one_string_and_not_its_letters():
    assert SamplingFields().sampling_options({"stop": "END"}).stop == ("END",)


def test_an_unknown_parameter_is_refused_with_what_may_be_set():
    with pytest.raises(BadRequest, match=r"logit_bias.*leave it out.*temperature"):
        SamplingFields().sampling_options({"logit_bias": {1: 2.0}})


def test_an_unknown_parameter_that_asks_for_nothing_is_let_pass():
    options = SamplingFields().sampling_options({"logprobs": None, "use_beam_search": False})
    assert options == SamplingFields().sampling_options()


def test_several_answers_to_one_prompt_are_refused():
    with pytest.raises(BadRequest, match="n=2; send the prompt 2 times"):
        SamplingFields().sampling_options({"n": 2})


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0}, {"top_k": -2}, {"max_new_tokens": 0}, {"n": 3}]
)
def test_values_that_cannot_be_drawn_from_are_refused_at_construction(wrong):
    with pytest.raises(ValidationError):
        SamplingFields(**wrong)
