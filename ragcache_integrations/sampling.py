"""Sampling parameters under the names of the frameworks' own vLLM classes.

LangChain's VLLM and LlamaIndex's Vllm share names and defaults. Swapping the class must give the same
answers, so the defaults here are theirs: temperature 1.0 and 512 tokens. (The engine's own defaults are
temperature 0 and 256 tokens.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import AliasChoices, BaseModel, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from ragcache_engine import Guide, InvalidArgument, RAGCacheEngine, SamplingOptions

_ENGINE_NAMES = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens"}
# With one of these values, an unknown parameter such as logprobs asks for nothing.
_VALUES_WITHOUT_EFFECT = (None, False)

_TIMEOUT = (
    "leave it out, and set request_timeout_s in the engine's configuration; to give up earlier, "
    "close the stream or cancel the task"
)
_LOGPROBS = (
    "leave it out: only the classes for LangChain and SamplingOptions have log probabilities"
)
_MODEL = (
    "leave it out, and set model in the engine's configuration; another model needs another engine"
)
_NO_EFFECT = ("user", "stream_options", "stream_usage")
"""Parameters of OpenAI's classes that change no answer here: usage comes with every stream."""

_INSTEAD = {
    "timeout": _TIMEOUT,
    "request_timeout": _TIMEOUT,
    "max_retries": "leave it out: the engine itself tries a failed request once more, and the frameworks "
    "have retries of their own, such as LangChain's with_retry()",
    "logprobs": _LOGPROBS,
    "top_logprobs": _LOGPROBS,
    "response_format": "leave it out, and hold the answer to a form with guide=Guide.json(schema)",
    "model": _MODEL,
    "model_name": _MODEL,
}
"""What to do instead of passing a parameter that other models of the frameworks take."""


class SamplingFields(BaseModel):
    """How answers are sampled, unless a call says otherwise.

    max_new_tokens: the most tokens an answer may have; `max_tokens` and
      `max_completion_tokens` are other names for it.
    temperature: 0 takes the most likely token each time (greedy).
    top_k: -1 considers every token.
    stop: strings that end the answer, or one; they are not part of it.
    guide: a form that answers must keep to: a Guide, a JSON schema as a dict, or a Pydantic class.
    n: must be 1; this field exists because the frameworks' classes have it. To get several answers,
      send the prompt several times.
    Raises pydantic's ValidationError, a ValueError, for values that cannot be sampled with.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = Field(
        default=512, validation_alias=AliasChoices(*_ENGINE_NAMES, "max_tokens")
    )
    stop: list[str] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    guide: Guide | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_parameters_of_other_models(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        ours = {name for field in cls.model_fields.items() for name in _names_of(*field)}
        foreign = {name: value for name, value in values.items() if name in _INSTEAD.keys() - ours}
        _refuse_unknown(foreign)
        dropped = {*foreign, *_NO_EFFECT}
        return {name: value for name, value in values.items() if name not in dropped}

    @field_validator("stop", mode="before")
    @classmethod
    def _read_stop(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("guide", mode="before")
    @classmethod
    def _read_guide(cls, guide: Any) -> Guide | None:
        return as_guide(guide)

    @model_validator(mode="after")
    def _refuse_impossible_sampling(self) -> Self:
        options = self.sampling_options()
        if isinstance(engine := getattr(self, "engine", None), RAGCacheEngine):
            engine.expect_options(options)  # so that the first prompt can be begun early
        return self

    def sampling_parameters(self) -> dict[str, Any]:
        """Return the parameters under the names of these fields."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}

    def sampling_options(self, changes: Mapping[str, Any] | None = None) -> SamplingOptions:
        """Return the engine's options for one call.

        changes: parameters that this call sets for itself, under the same names.
        Raises InvalidArgument for a parameter the engine does not have, ValueError for impossible values.
        """
        parameters = _rename_for_engine(self.sampling_parameters())
        parameters |= _keep_known(_rename_for_engine(changes or {}), parameters)
        if (n := parameters.pop("n")) != 1:
            raise InvalidArgument(
                f"a prompt has one answer here, got n={n}; send the prompt {n} times"
            )
        return SamplingOptions(
            **{
                **parameters,
                "top_k": 0 if parameters["top_k"] == -1 else parameters["top_k"],
                "stop": _stop_strings(parameters["stop"]),
                "guide": as_guide(parameters["guide"]),
            }
        )


def as_guide(form: Any) -> Guide | None:
    """Make a Guide of a Guide, of a JSON schema (a mapping), or of a Pydantic class; None stays None.

    A mapping with exactly the keys `kind` and `form` is a Guide that was written into a file.
    Raises ValueError for anything else.
    """
    if form is None or isinstance(form, Guide):
        return form
    if isinstance(form, Mapping):
        return Guide(**form) if form.keys() == {"kind", "form"} else Guide.json(form)
    if isinstance(form, type) and issubclass(form, BaseModel):
        return Guide.json(form.model_json_schema())
    raise ValueError(
        f"guide takes a Guide, such as Guide.regex(pattern), a JSON schema or a Pydantic class, got "
        f"{form!r}"
    )


def _names_of(name: str, field: FieldInfo) -> Iterable[Any]:
    """Return the names under which a field may be given."""
    alias = field.validation_alias
    return (name, *alias.choices) if isinstance(alias, AliasChoices) else (name,)


def _rename_for_engine(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters under the engine's names. Raises InvalidArgument if two of them disagree."""
    given: dict[str, str] = {}
    for name, value in parameters.items():
        other = given.setdefault(_ENGINE_NAMES.get(name, name), name)
        if parameters[other] != value:
            raise InvalidArgument(
                f"{other}={parameters[other]} and {name}={value}: give one of them"
            )
    return {renamed: parameters[name] for renamed, name in given.items()}


def _keep_known(changes: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the changes without unknown ones that ask for nothing, such as logprobs=None.

    Raises InvalidArgument for an unknown one that asks for something.
    """
    names = sorted(names)
    unknown = {name: value for name, value in changes.items() if name not in {*names, *_NO_EFFECT}}
    _refuse_unknown(unknown, f"leave it out. A call may set {', '.join(names)}")
    return {name: value for name, value in changes.items() if name in names}


def _refuse_unknown(parameters: Mapping[str, Any], advice: str = "leave it out") -> None:
    """Raise InvalidArgument if a parameter asks for something. advice: for those not in _INSTEAD."""
    for name, value in parameters.items():
        if value not in _VALUES_WITHOUT_EFFECT:
            raise InvalidArgument(
                f"the engine cannot honour {name}={value!r}; {_INSTEAD.get(name, advice)}"
            )


def _stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
