"""The form that an answer must have. The backend enforces it token by token while it generates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from pydantic_core import from_json

from ragcache_engine.errors import InvalidArgument
from ragcache_engine.visible import quoted


class GuideKind(StrEnum):
    """The language a guide is written in."""

    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Guide:
    """A form for an answer: the backend rules out every token that would break it.

        Guide.json({"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]})
        Guide.regex(r"[0-9]{4}"); Guide.choice(["yes", "no"]); Guide.grammar('root ::= "yes" | "no"')

    An answer that max_tokens or a stop string ends may be incomplete. Two guides are equal only if
    their texts are. An answer has the properties in the order in which the schema names them, so a
    schema with another order is another guide.

    kind: the language of `form`. form: a tuple of one string; for a choice, of one string for each
      text.
    Raises InvalidArgument for an empty form, or one that is not a JSON schema.
    """

    kind: GuideKind
    form: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in list(GuideKind):
            kinds = ", ".join(GuideKind)
            raise InvalidArgument(f"a guide's kind is one of {kinds}; got {self.kind!r}")
        object.__setattr__(self, "kind", GuideKind(self.kind))
        if not isinstance(self.form, Iterable):
            raise InvalidArgument(f"form takes a sequence of strings, got {self.form!r}")
        if isinstance(self.form, str):
            raise InvalidArgument(f"form takes a sequence of strings: form=({self.form!r},)")
        object.__setattr__(self, "form", tuple(self.form))
        if not self.form or not all(isinstance(text, str) and text for text in self.form):
            raise InvalidArgument(
                f"a guide of kind {self.kind.value} needs a text that is not empty"
            )
        if self.kind is not GuideKind.CHOICE and len(self.form) != 1:
            raise InvalidArgument(
                f"a guide of kind {self.kind.value} has one text, got {quoted(self.form)}"
            )
        if self.kind is GuideKind.JSON:
            _require_schema(self.form[0])

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str | None = None) -> Self:
        """Return a guide to JSON that fits a schema.

        schema: a mapping, or its JSON text. None: any JSON object.
        """
        if schema is None:
            schema = {"type": "object"}
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        return cls(GuideKind.JSON, (text,))

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Return a guide to text that the pattern matches from end to end."""
        return cls(GuideKind.REGEX, (pattern,))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """Return a guide to one of these texts."""
        if isinstance(texts, str):
            raise InvalidArgument(f"choice takes a sequence of texts: choice([{texts!r}])")
        return cls(GuideKind.CHOICE, tuple(texts))

    @classmethod
    def grammar(cls, ebnf: str) -> Self:
        """Return a guide to text that a context-free grammar derives.

        ebnf: the grammar, in the EBNF of vLLM's structured outputs.
        """
        return cls(GuideKind.GRAMMAR, (ebnf,))

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the guide. Raises InvalidArgument if the guide is of another kind."""
        if self.kind is not GuideKind.JSON:
            raise InvalidArgument(f"a guide of kind {self.kind.value} has no JSON schema")
        schema: dict[str, Any] = json.loads(self.form[0])
        return schema


def _require_schema(text: str) -> None:
    try:
        schema = from_json(text)  # it goes no deeper than 200 levels
    except ValueError as error:
        raise InvalidArgument(f"a guide's JSON schema is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidArgument(f"a guide's JSON schema is a JSON object, got {quoted(text)}")
