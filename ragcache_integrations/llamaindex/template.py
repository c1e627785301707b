"""Makes a LlamaIndex prompt a function with which the engine writes prompts of provisional nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from llama_index.core.prompts import BasePromptTemplate, PromptTemplate

from ragcache_engine import Document, Template

BETWEEN_NODES = "\n\n"

PromptTemplateLike = BasePromptTemplate | str | Callable[[str, Sequence[Document]], str]


class Renders(Protocol):
    """An LLM that can say which prompt it writes, as RAGCacheLLM can."""

    def render(self, template: BasePromptTemplate, **prompt_args: Any) -> str: ...


def as_template(
    template: PromptTemplateLike, llm: Renders | None = None
) -> Callable[[str, Sequence[Document]], str]:
    """Return a function (question, documents) -> prompt, as the engine takes it.

    template: the text_qa_template of a synthesizer in its mode "compact", which trims the nodes' texts
      and leaves out blank ones; a text such as "{context_str}\\n\\n{query_str}", used in the same way;
      or such a function, for other pipelines.
    llm: the LLM that is asked. It may write the template as a conversation or add a system prompt.
    Raises ValueError for anything else, and for a template whose variables cannot be told apart.
    """
    if not isinstance(template, str | BasePromptTemplate):
        if not callable(template):
            raise ValueError(f"template takes a prompt, a text or a function, got {template!r}")
        return template
    # LlamaIndex reads the braces in a text.
    prompt = PromptTemplate(template) if isinstance(template, str) else template
    write = _fill_with(prompt, partial(llm.render, prompt) if llm else prompt.format)

    def write_prompt(question_text: str, documents: Sequence[Document]) -> str:
        trimmed = [Document(document.id, document.text.strip()) for document in documents]
        return write(question_text, [document for document in trimmed if document.text])

    return write_prompt


def _fill_with(
    template: BasePromptTemplate, fill: Callable[..., str]
) -> Callable[[str, Sequence[Document]], str]:
    # `fill` takes LlamaIndex's names for the variables, not those that the template maps them to.
    asked_with = {theirs: ours for ours, theirs in (template.template_var_mappings or {}).items()}
    names = [asked_with.get(name, name) for name in template.template_vars]
    filled = {*template.kwargs, *(template.function_mappings or {})} - {"context_str", "query_str"}
    context, question = Template.slots(name for name in names if name not in filled)

    def write_prompt(question_text: str, documents: Sequence[Document]) -> str:
        values: dict[str, Any] = {
            context: BETWEEN_NODES.join(document.text for document in documents)
        }
        if question:
            values[question] = question_text
        return fill(**values)

    return write_prompt
