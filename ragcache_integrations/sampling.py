"""Sampling parameters as the frameworks' own vLLM classes spell them, and the engine's for them.

LangChain's VLLM and LlamaIndex's Vllm share names and defaults. Swapping the class must draw the
same answers, so these are theirs: above all temperature 1.0 and 512 tokens, where the engine's own
default is greedy and 256.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import AliasChoices, BaseModel, Field, field_validator, model_validator

from ragcache_engine import BadRequest, Guide, SamplingOptions

_ENGINE_NAMES = {"max_new_tokens": "max_tokens"}
# Values that leave a parameter unknown here, such as logprobs, at what vLLM does anyway.
_VALUES_WITHOUT_EFFECT = (None, False)


class SamplingFields(BaseModel):
    """How answers are drawn, unless a call says otherwise.

    max_new_tokens: most tokens in an answer; `max_tokens` is another name for it.
    temperature: 0 is greedy.
    top_k: -1 considers every token.
    stop: strings that end the answer; they are not part of it.
    guide: a form that answers keep to: a Guide, or what `as_guide` makes one of.
    n: 1, and there for the swap; a prompt that needs several answers is sent several times.
    Raises pydantic's ValidationError, a ValueError, if the values cannot be drawn from.
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
        default=512, validation_alias=AliasChoices("max_new_tokens", "max_tokens")
    )
    stop: list[str] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    guide: Guide | None = None

    @field_validator("guide", mode="before")
    @classmethod
    def _read_guide(cls, guide: Any) -> Guide | None:
        return as_guide(guide)

    @model_validator(mode="after")
    def _refuse_impossible_sampling(self) -> Self:
        self.sampling_options()
        return self

    def sampling_parameters(self) -> dict[str, Any]:
        """The parameters by the names they were set with."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}

    def sampling_options(self, changes: Mapping[str, Any] | None = None) -> SamplingOptions:
        """The engine's options for one call.

        changes: what the call says otherwise, by the same names.
        Raises BadRequest for a name the engine knows nothing of, ValueError for impossible values.
        """
        parameters = _rename_for_engine(self.sampling_parameters())
        parameters |= _keep_known(_rename_for_engine(changes or {}), parameters)
        if (n := parameters.pop("n")) != 1:
            raise BadRequest(f"a prompt has one answer here, got n={n}; send the prompt {n} times")
        return SamplingOptions(
            **{
                **parameters,
                "top_k": 0 if parameters["top_k"] == -1 else parameters["top_k"],
                "stop": _stop_strings(parameters["stop"]),
                "guide": as_guide(parameters["guide"]),
            }
        )


def as_guide(form: Any) -> Guide | None:
    """The guide that a user means: a Guide, a JSON schema as a mapping, or a Pydantic class.

    A mapping of `kind` and `form` is a Guide as it was written into a file.
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


def _rename_for_engine(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {_ENGINE_NAMES.get(name, name): value for name, value in parameters.items()}


def _keep_known(changes: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The changes without those that ask for nothing, such as logprobs=None."""
    names = sorted(names)
    for name, value in changes.items():
        if name not in names and value not in _VALUES_WITHOUT_EFFECT:
            raise BadRequest(
                f"the engine cannot honour {name}={value!r}; leave it out. "
                f"A call may set {', '.join(names)}"
            )
    return {name: value for name, value in changes.items() if name in names}


def _stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
