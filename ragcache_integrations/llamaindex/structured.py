"""Structured prediction with answers that always fit the schema, by guided decoding."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llama_index.core.llms.llm import LLM
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import Model, PydanticProgramMode
from pydantic import BaseModel, ValidationError, field_validator

from ragcache_engine import AnswerCutShort, Guide
from ragcache_integrations.cut_answers import describe_cut_answer


class GuidedPrediction(LLM):
    """LlamaIndex's structured prediction, with answers held to the output class.

    LlamaIndex puts the schema into the prompt and hopes that the model keeps to it. Here the schema also
    guides every token of the answer. llm_kwargs may set another `guide`.

    pydantic_program_mode: PydanticProgramMode.LLM, unless it is FUNCTION, which makes the answer a call
      of a tool whose arguments are the output class; then `guide` has no effect.
    """

    pydantic_program_mode: PydanticProgramMode = PydanticProgramMode.LLM

    @field_validator("pydantic_program_mode")
    @classmethod
    def _prefer_guided_answers(cls, mode: PydanticProgramMode) -> PydanticProgramMode:
        # LlamaIndex's default asks an LLM with tools for a call, which costs more tokens than its
        # arguments alone, and does not force the call in a stream.
        return PydanticProgramMode.LLM if mode is PydanticProgramMode.DEFAULT else mode

    def structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """Return an instance of output_cls that the model has filled in.

        prompt: filled with prompt_args; LlamaIndex adds the schema. llm_kwargs: options of this call,
          such as max_tokens.
        Raises what any call of the LLM raises; UnsupportedGuide for a schema that cannot guide an answer;
        AnswerCutShort if the answer ended before its form was complete; pydantic's ValidationError for
        rules of the class that a JSON schema cannot express.
        """
        with _name_cut_short_answer():
            predicted: Model = super().structured_predict(
                output_cls, prompt, self._guide_by(output_cls, llm_kwargs), **prompt_args
            )
        return predicted

    async def astructured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """Do what `structured_predict` does, for coroutines."""
        with _name_cut_short_answer():
            predicted: Model = await super().astructured_predict(
                output_cls, prompt, self._guide_by(output_cls, llm_kwargs), **prompt_args
            )
        return predicted

    def stream_structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Model | FlexibleModel, None, None]:
        """Yield the instance as filled in so far; fields that are still missing are None.

        Takes the arguments of `structured_predict`.
        """
        stream: Generator[Model | FlexibleModel, None, None] = super().stream_structured_predict(
            output_cls, prompt, self._guide_by(output_cls, llm_kwargs), **prompt_args
        )
        return stream

    async def astream_structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Model | FlexibleModel, None]:
        """Do what `stream_structured_predict` does, for coroutines."""
        stream: AsyncGenerator[
            Model | FlexibleModel, None
        ] = await super().astream_structured_predict(
            output_cls, prompt, self._guide_by(output_cls, llm_kwargs), **prompt_args
        )
        return stream

    def _guide_by(
        self, output_cls: type[BaseModel], llm_kwargs: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        if self.pydantic_program_mode is PydanticProgramMode.FUNCTION:
            return dict(llm_kwargs or {})
        return {"guide": Guide.json(output_cls.model_json_schema()), **(llm_kwargs or {})}


@contextmanager
def _name_cut_short_answer() -> Iterator[None]:
    """Turn LlamaIndex's errors about incomplete JSON into AnswerCutShort."""
    try:
        yield
    except ValidationError as error:
        for each in error.errors():
            if each["type"] == "json_invalid":
                text = str(each["input"])
                raise AnswerCutShort(describe_cut_answer(text, _CUT_SHORT_MESSAGE)) from error
        raise
    except ValueError as error:
        if "Could not extract json" not in str(error):
            raise
        raise AnswerCutShort(describe_cut_answer(str(error), _CUT_SHORT_MESSAGE)) from error


_CUT_SHORT_MESSAGE = (
    "the answer ended before its form was complete: raise max_new_tokens (a call may: "
    'llm_kwargs={"max_tokens": ...}), shorten the prompt if it fills the model\'s context, leave stop '
    "strings out, or bound the lengths of strings and lists in the output class"
)
