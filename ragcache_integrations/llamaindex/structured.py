"""Structured prediction whose answers cannot leave the schema: it guides every token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llama_index.core.llms.llm import LLM
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import Model
from pydantic import BaseModel, ValidationError

from ragcache_engine import AnswerCutShort, Guide


class GuidedPrediction(LLM):
    """LlamaIndex's structured prediction, with the output class as the form of the answer.

    What LlamaIndex otherwise hopes for, that the model keeps to the schema in its prompt, is enforced
    while the answer is drawn. llm_kwargs may bring a `guide` of its own.
    """

    def structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """An instance of output_cls, as the model fills it in.

        prompt: filled with prompt_args; LlamaIndex writes the schema behind it. llm_kwargs: options of
          this one call, such as max_tokens.
        Raises what asking raises; UnsupportedGuide for a schema that cannot guide; AnswerCutShort if
        the answer ended inside its form; pydantic's ValidationError for what the schema cannot say.
        """
        with _name_cut_short_answer():
            predicted: Model = super().structured_predict(
                output_cls, prompt, _add_guide(output_cls, llm_kwargs), **prompt_args
            )
        return predicted

    async def astructured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """`structured_predict` for coroutines."""
        with _name_cut_short_answer():
            predicted: Model = await super().astructured_predict(
                output_cls, prompt, _add_guide(output_cls, llm_kwargs), **prompt_args
            )
        return predicted

    def stream_structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Model | FlexibleModel, None, None]:
        """What is filled in so far, ever more; fields that have not come are None.

        Takes what `structured_predict` takes.
        """
        stream: Generator[Model | FlexibleModel, None, None] = super().stream_structured_predict(
            output_cls, prompt, _add_guide(output_cls, llm_kwargs), **prompt_args
        )
        return stream

    async def astream_structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Model | FlexibleModel, None]:
        """`stream_structured_predict` for coroutines."""
        stream: AsyncGenerator[
            Model | FlexibleModel, None
        ] = await super().astream_structured_predict(
            output_cls, prompt, _add_guide(output_cls, llm_kwargs), **prompt_args
        )
        return stream


def _add_guide(output_cls: type[BaseModel], llm_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"guide": Guide.json(output_cls.model_json_schema()), **(llm_kwargs or {})}


@contextmanager
def _name_cut_short_answer() -> Iterator[None]:
    """Turn LlamaIndex's complaints about JSON that does not end into AnswerCutShort."""
    try:
        yield
    except ValidationError as error:
        if not any(each["type"] == "json_invalid" for each in error.errors()):
            raise
        raise AnswerCutShort(_CUT_SHORT_MESSAGE) from error
    except ValueError as error:
        if "Could not extract json" not in str(error):
            raise
        raise AnswerCutShort(_CUT_SHORT_MESSAGE) from error


_CUT_SHORT_MESSAGE = (
    "the answer ended inside the form it was to have: raise max_new_tokens (a call may: "
    'llm_kwargs={"max_tokens": ...}), or bound the lengths of strings and lists in the output class'
)
