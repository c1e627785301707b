"""Structured output: chat models whose answers keep to a schema and come back as values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import (
    BaseOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
)
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    PydanticToolsParser,
)
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableMap,
    RunnablePassthrough,
)
from langchain_core.utils.function_calling import (
    convert_to_json_schema,
    convert_to_openai_tool,
)
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, ValidationError
from pydantic.v1 import BaseModel as BaseModelV1

from ragcache_engine import BadRequest, Guide
from ragcache_integrations.langchain.complete_answers import (
    pass_complete_answers,
    require_complete,
)

Method: TypeAlias = Literal["json_schema", "function_calling", "json_mode"]
Schema: TypeAlias = dict[str, Any] | type

_SCHEMA_WORDS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
"""Keys of a JSON schema. The description of a function has none of them at its top."""


def bind_structured_output(
    model: BaseChatModel,
    schema: Schema | None,
    method: Method,
    include_raw: bool,
    options: dict[str, Any],
) -> Runnable[LanguageModelInput, Any]:
    """Return a runnable that holds the model to the schema and parses its answers.

    Arguments and errors: see ChatRAGCache.with_structured_output. options: for `bind`.
    """
    if method not in ("json_schema", "function_calling", "json_mode"):
        raise ValueError(
            f"there is no method {method!r}: use 'json_schema', 'function_calling' or 'json_mode'"
        )
    if schema is None and method != "json_mode":
        raise ValueError(f"method={method!r} needs a schema; 'json_mode' does without")
    options["ls_structured_output_format"] = {
        "kwargs": {"method": method},
        "schema": schema or {"title": "object", "type": "object"},
    }
    bound: Runnable[LanguageModelInput, AIMessage]
    if tools := options.pop("tools", None):
        if method != "json_schema" or not include_raw:
            raise ValueError("tools need method='json_schema' and include_raw=True")
        assert schema is not None
        bound = model.bind_tools(tools, guide=guide_for_schema(schema), **options)
        return add_parser(bound, _pass_calls(parser_for_schema(schema, method)), include_raw)
    if method == "function_calling":
        assert schema is not None
        bound = model.bind_tools([schema], tool_choice="any", **options)
    elif method == "json_mode":
        bound = model.bind(guide=Guide.json(), **options)
    else:
        assert schema is not None
        bound = model.bind(guide=guide_for_schema(schema), **options)
    return add_parser(bound, parser_for_schema(schema, method), include_raw)


def _pass_calls(parser: BaseOutputParser[Any]) -> Runnable[AIMessage, Any]:
    """Return a parser whose value of an answer with tool calls is None."""
    return RunnableLambda(lambda answer: None if answer.tool_calls else parser.invoke(answer))


def guide_for_schema(schema: Schema) -> Guide:
    """Return the guide that holds an answer to the schema. Raises ValueError without a schema."""
    match schema:
        case {"name": str(), "schema": dict(named)} | {"json_schema": {"schema": dict(named)}}:
            return Guide.json(named)
        case {"function": _}:
            return Guide.json(convert_to_json_schema(schema))
    if isinstance(schema, dict) and schema.keys() & _SCHEMA_WORDS:
        return Guide.json(schema)
    if isinstance(schema, type) and issubclass(schema, BaseModelV1):
        return Guide.json(schema.schema())
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return Guide.json(schema.model_json_schema())
    return Guide.json(convert_to_json_schema(schema))


def guide_for_response_format(form: Any) -> Guide | None:
    """Return the guide for a response_format of OpenAI's API: a mapping, or a Pydantic class.

    Raises BadRequest for others.
    """
    if isinstance(form, type) and is_basemodel_subclass(form):
        return guide_for_schema(form)
    match form:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Guide.json()
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return Guide.json(schema)
    raise BadRequest(
        f"response_format takes OpenAI's form, such as {{'type': 'json_object'}}, or a Pydantic class, "
        f"got {form!r}; for another schema use with_structured_output(schema)"
    )


def add_parsed(message: BaseMessage, form: Any, text: str) -> None:
    """Put the answer into additional_kwargs["parsed"], where OpenAI's classes have it.

    form: the call's response_format; only a Pydantic class is parsed. text: the whole answer. An answer
    that does not fit, because it was cut short, is not put there.
    """
    if isinstance(form, type) and issubclass(form, BaseModel):
        with suppress(ValidationError):
            message.additional_kwargs["parsed"] = form.model_validate_json(text)


def parser_for_schema(schema: Schema | None, method: Method) -> BaseOutputParser[Any]:
    """Return the parser of the answers: to a Pydantic class if the schema is one, else to a dict."""
    is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
    if method == "function_calling":
        assert schema is not None
        if is_class:
            return PydanticToolsParser(tools=[schema], first_tool_only=True)  # type: ignore[list-item]
        name = convert_to_openai_tool(schema)["function"]["name"]
        return JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
    return PydanticOutputParser(pydantic_object=schema) if is_class else JsonOutputParser()  # type: ignore[arg-type]


def add_parser(
    model: Runnable[LanguageModelInput, AIMessage],
    parser: Runnable[AIMessage, Any],
    include_raw: bool,
) -> Runnable[LanguageModelInput, Any]:
    """Return a runnable that parses the model's answers.

    include_raw: return {"raw", "parsed", "parsing_error"} instead, and raise no parsing error.
    An answer that ended before its form was complete is a parsing error, AnswerCutShort.
    """
    if not include_raw:
        return model | pass_complete_answers() | parser
    nothing: Callable[[Any], None] = lambda _: None  # noqa: E731
    # The check comes before the first output: once a stream has begun, there is no falling back.
    value = RunnableLambda(_require_complete_raw) | RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=nothing
    )
    no_value = RunnablePassthrough.assign(parsed=nothing)
    return RunnableMap(raw=model) | value.with_fallbacks([no_value], exception_key="parsing_error")


def _require_complete_raw(answer: dict[str, AIMessage]) -> dict[str, AIMessage]:
    require_complete(answer["raw"])
    return answer
