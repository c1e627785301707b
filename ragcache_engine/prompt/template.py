"""A prompt template from the user, with which even a chain's first question can be speculated on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from string import Formatter

from ragcache_engine.checks import shown
from ragcache_engine.errors import InvalidArgument
from ragcache_engine.prompt.form import read_forms
from ragcache_engine.values import Document

Render = Callable[[str, Sequence[Document]], str]
"""(question, documents nearest first) -> the prompt that the chain writes. Called from any thread."""

CONTEXT_NAMES = ("context", "context_str", "documents", "docs", "sources", "passages", "summaries")
QUESTION_NAMES = ("question", "query", "query_str", "input", "user_input", "human_input")
QUESTION = "{question}"
BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class Template:
    """The prompt around the documents: before, between and after them.

        >>> template = Template("Use the passages. ", "; ", " Question: {question}")
        >>> template("Why?", [Document("d1", "Tides follow the moon"), Document("d2", "Ice floats")])
        'Use the passages. Tides follow the moon; Ice floats Question: Why?'

    In `before` and `after`, {question} stands for the question. To write a brace, double it, as in
    str.format. Documents and questions may hold any characters. Calling the template writes the prompt,
    so a template may be given wherever a function (question, documents) -> prompt may.
    between: what stands between two documents, taken literally.
    Raises InvalidArgument for a slot with another name, or a single brace.
    """

    before: str
    between: str
    after: str

    def __post_init__(self) -> None:
        for text in (self.before, self.after):
            _parts(text, {QUESTION[1:-1]: None})

    def __call__(self, question: str, documents: Sequence[Document]) -> str:
        context = self.between.join(document.text for document in documents)
        return "".join((_fill(self.before, question), context, _fill(self.after, question)))

    @classmethod
    def from_text(cls, text: str, between: str = BETWEEN) -> Template:
        """Make a template from a format string: one slot for the documents, and the question's slots.

        text: such as "{context}\\n\\nQuestion: {question}". The question may be left out, or stand in it
          several times. The slots may have the names that LangChain and LlamaIndex use (CONTEXT_NAMES,
          QUESTION_NAMES).
        between: what joins the documents.
        Raises InvalidArgument for other slots, or unless exactly one slot is for the documents.

            >>> Template.from_text("{context} Question: {question}", between="; ").after
            ' Question: {question}'
        """
        names = [name for _, name, _, _ in _parse(text) if name is not None]
        context, question = cls.slots(names)
        parts = _parts(text, {context: None} | ({question: QUESTION} if question else {}))
        at = parts.index(None)
        return cls("".join(filter(None, parts[:at])), between, "".join(filter(None, parts[at:])))

    @staticmethod
    def slots(names: Iterable[str]) -> tuple[str, str | None]:
        """Return the name of the documents' slot, and that of the question's slot if there is one.

        Raises InvalidArgument unless there is exactly one slot for the documents, or if there is a slot
        for something else.
        """
        given = list(names)
        context = next((name for name in given if name in CONTEXT_NAMES), None)
        question = next((name for name in given if name in QUESTION_NAMES), None)
        if context is None or given.count(context) > 1 or set(given) - {context, question}:
            raise InvalidArgument(
                f"a template has one slot for the documents ({', '.join(CONTEXT_NAMES)}), and may have "
                f"slots for the question ({', '.join(QUESTION_NAMES)}), and no others; "
                f"found {', '.join(given) or 'none'}. To write a brace, double it"
            )
        return context, question

    @classmethod
    def from_example(cls, prompt: str, question: str, documents: Sequence[Document]) -> Template:
        """Make a template from a finished prompt, its question, and two or more documents, nearest first.

        Raises InvalidArgument if it is not clear where the documents or the question stand, or if the
        texts between the documents differ.

            >>> found = [Document("d1", "Tides follow the moon."), Document("d2", "Ice floats.")]
            >>> prompt = "Read: Tides follow the moon. -- Ice floats. And now: why?"
            >>> Template.from_example(prompt, "why?", found).after
            ' And now: {question}'
        """
        seen = next(read_forms(prompt, question, documents), None)
        if not seen or not seen.is_as_retrieved or seen.trims:
            raise InvalidArgument(
                "the example must hold every document once, with its exact text and in the order given"
            )
        if len(set(seen.between)) != 1:
            raise InvalidArgument("the example must hold two documents or more, joined by one text")
        if len(seen.before) + len(seen.after) != 3:
            raise InvalidArgument("the example must hold its question once outside the documents")

        def put_slots(texts: Sequence[str]) -> str:
            return QUESTION.join(map(_escape, texts))

        return cls(put_slots(seen.before), seen.between[0], put_slots(seen.after))


def as_render(template: str | Render) -> Render:
    """Return a function that writes the prompt.

    Raises InvalidArgument for a text that is not a template, or an object that is neither a text nor a
    function.
    """
    if isinstance(template, str):
        return Template.from_text(template)
    if not callable(template):
        raise InvalidArgument(
            f"a template is a text with slots, a Template, or a function (question, documents) -> "
            f"prompt; got {type(template).__name__}"
        )
    return template


def _parse(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    """Split a format string. Raises InvalidArgument for a single brace."""
    try:
        return list(Formatter().parse(text))
    except ValueError as error:
        raise InvalidArgument(
            f"{shown(text)} is no template: {error}. To write a brace, double it"
        ) from error


def _parts(text: str, names: dict[str, str | None]) -> list[str | None]:
    """Split a format string at its slots, and put what `names` gives in their places.

    The fixed parts stay format strings, with doubled braces. Raises InvalidArgument for other slots.
    """
    parts: list[str | None] = []
    for fixed, name, form, conversion in _parse(text):
        parts.append(_escape(fixed))
        if name is None:
            continue
        if name not in names or form or conversion:
            raise InvalidArgument(
                f"unknown slot {{{name}}} in {text!r}: known are {', '.join(sorted(names))}. To write "
                f"a brace, double it"
            )
        parts.append(names[name])
    return parts


def _fill(text: str, question: str) -> str:
    parts = _parts(text, {QUESTION[1:-1]: QUESTION})
    return "".join(
        question if part == QUESTION else (part or "").replace("{{", "{").replace("}}", "}")
        for part in parts
    )


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
