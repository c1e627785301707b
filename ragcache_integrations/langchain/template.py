"""Makes a LangChain prompt a function with which the engine writes prompts of provisional documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.prompts import BasePromptTemplate

from ragcache_engine import Document, Template

PromptTemplateLike = BasePromptTemplate[Any] | str | Callable[[str, Sequence[Document]], str]


def as_template(
    template: PromptTemplateLike, separator: str, llm: Any = None
) -> Callable[[str, Sequence[Document]], str]:
    """Return a function (question, documents) -> prompt, as the engine takes it.

    template: the chain's PromptTemplate or ChatPromptTemplate, whose messages are written as LangChain
      writes them for an LLM; a text such as "{context}\\n\\n{question}"; or such a function.
    separator: the text with which the chain joins the documents. A function does not use it.
    llm: the model that is asked; if it is a chat model, its `render` writes the prompt.
    Raises ValueError for anything else, and for a template whose variables cannot be told apart.
    """
    render: Callable[[Any], str] | None = getattr(llm, "render", None)
    if isinstance(template, str):
        text = Template.from_text(template, separator)
        return _render_text(text, render) if render else text
    if not isinstance(template, BasePromptTemplate):
        if not callable(template):
            raise ValueError(f"template takes a prompt, a text or a function, got {template!r}")
        return template
    prompt, (context, question) = template, Template.slots(template.input_variables)

    def write_prompt(question_text: str, documents: Sequence[Document]) -> str:
        values = {context: separator.join(document.text for document in documents)}
        if question:
            values[question] = question_text
        value = prompt.format_prompt(**values)
        return render(value) if render else value.to_string()

    return write_prompt


def _render_text(
    template: Template, render: Callable[[Any], str]
) -> Callable[[str, Sequence[Document]], str]:
    return lambda question, documents: render(template(question, documents))
