"""Carries the options of a framework's model over to ours: those that have the same meaning.

An option that changes answers and that the engine does not have keeps the model from being swapped.
Everything else of a model, such as its address, its key and its timeouts, is about reaching it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ragcache_engine import InvalidArgument
from ragcache_integrations.sampling import SamplingFields

_OUR_NAMES = {
    **dict.fromkeys(
        ("max_new_tokens", "max_tokens", "max_completion_tokens", "num_predict"), "max_new_tokens"
    ),
    **dict.fromkeys(("stop", "stop_sequences", "stop_strings"), "stop"),
    **{
        name: name
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "ignore_eos",
            "n",
        )
    },
}
"""The options of other models that ours have too, and their names here."""

_CHANGE_ANSWERS = (
    "bad_words",
    "best_of",
    "format",
    "grammar",
    "json_mode",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "lora_request",
    "mirostat",
    "no_repeat_ngram_size",
    "num_beams",
    "reasoning",
    "reasoning_effort",
    "repeat_penalty",
    "response_format",
    "tfs_z",
    "thinking",
    "top_logprobs",
    "typical_p",
    "use_beam_search",
)
"""Options that change an answer, or what comes with it, and that the engine does not have."""

_OPTION_MAPPINGS = ("extra_body", "additional_kwargs", "pipeline_kwargs", "generate_kwargs")
"""Attributes that hold further options of each request."""

_OF_TRANSFORMERS = ("pipeline_kwargs", "generate_kwargs")
"""Those of Hugging Face's classes, whose model_kwargs are about loading the model."""

_NO_LIMIT = (None, -1, -2)
"""How a model says that its answers may have any length."""

_OF_MAPPINGS = {"do_sample": "do_sample", "chat_template_kwargs": "template_args"}
"""Options that stand only in mappings."""

_NO_EFFECT = ("return_full_text", "parallel_tool_calls", "stream_options", "user", "streaming")
_NOTHING: tuple[Any, ...] = (None, False, "", [], {}, ())
_AS_BEST_OF = ("best_of", "num_beams")
"""Options that ask for nothing if they are 1."""


class CannotCarry(ValueError):
    """A model has an option that cannot be carried over; the message says which, and what to do."""


def carry_options(model: Any) -> dict[str, Any]:
    """Return the options of a model under the names of SamplingFields, without those it does not set.

    max_new_tokens is None if the model says that its answers have no limit. template_args: further
    variables for the chat template, if the model has some.
    Raises CannotCarry.
    """
    found: dict[str, Any] = {}
    for name in (*_OUR_NAMES, *_CHANGE_ANSWERS):
        value = getattr(model, name, None)
        if value is not None and not callable(value):
            _carry(name, value, found)
    for name, value in _options_in_mappings(model):
        _carry_from_mapping(name, value, found)
    if found.pop("do_sample", None) is False:
        found["temperature"] = 0
    unlimited = found.get("max_new_tokens", None if _has_limit(model) else 0) in _NO_LIMIT
    return found | ({"max_new_tokens": None} if unlimited else {})


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgument unless these are sampling parameters, under names of SamplingFields."""
    unknown = options.keys() - _OUR_NAMES.keys() - SamplingFields.model_fields.keys()
    if unknown:
        raise InvalidArgument(
            f"options= takes sampling parameters such as temperature and max_new_tokens, got "
            f"{', '.join(sorted(unknown))}"
        )
    SamplingFields(**options)


def rename_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under the names of SamplingFields."""
    return {_OUR_NAMES.get(name, name): value for name, value in options.items()}


def settle_temperature(options: Mapping[str, Any], *models: Any) -> dict[str, Any]:
    """Return the options with a temperature, if it has to be another than our default.

    models: the model that the options were read from, and the one inside it, if there is one. Classes
    that know no temperature are taken to be greedy. Of one that knows it and does not set it, our default
    holds, which is that of vLLM's server.
    Raises CannotCarry for models of Hugging Face, whose own generation settings decide.
    """
    if "temperature" in options:
        return dict(options)
    if any(map(_is_of_transformers, models)):
        raise CannotCarry(
            "it does not say whether it samples, so its own generation settings decide: give it "
            "do_sample, or give accelerate options={'temperature': 0}"
        )
    knows = any(hasattr(model, "temperature") for model in models)
    return dict(options) if knows else {**options, "temperature": 0}


def _is_of_transformers(model: Any) -> bool:
    return any(hasattr(model, name) for name in _OF_TRANSFORMERS)


def _carry(name: str, value: Any, found: dict[str, Any]) -> None:
    if name in _OUR_NAMES:
        ours = _OUR_NAMES[name]
        if found.setdefault(ours, value) != value:
            raise CannotCarry(f"it has two values for {ours}, {found[ours]!r} and {value!r}")
    elif value not in _NOTHING and not (name in _AS_BEST_OF and value == 1):
        raise CannotCarry(f"the engine cannot honour its {name}={value!r}")


def _carry_from_mapping(name: str, value: Any, found: dict[str, Any]) -> None:
    if name in _OF_MAPPINGS:
        found[_OF_MAPPINGS[name]] = value
    elif name in _OUR_NAMES or name in _CHANGE_ANSWERS:
        if value is not None:
            found.pop(_OUR_NAMES.get(name, name), None)  # what is set for the request itself counts
            _carry(name, value, found)
    elif name not in _NO_EFFECT and value not in _NOTHING:
        raise CannotCarry(f"the engine does not know its option {name}={value!r}")


def _options_in_mappings(model: Any) -> Iterator[tuple[str, Any]]:
    names = _OPTION_MAPPINGS if _is_of_transformers(model) else (*_OPTION_MAPPINGS, "model_kwargs")
    for name in names:
        options = getattr(model, name, None)
        if isinstance(options, Mapping):
            yield from options.items()


def _has_limit(model: Any) -> bool:
    """Tell whether the model's class knows a limit, which is then not set."""
    limits = (theirs for theirs, ours in _OUR_NAMES.items() if ours == "max_new_tokens")
    return any(hasattr(model, name) for name in limits)
