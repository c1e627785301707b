"""Theirs to ours: a text_qa_template as what writes the prompt of nodes that are only provisional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from llama_index.core.prompts import BasePromptTemplate, PromptTemplate

from ragcache_engine import Document, Template

BETWEEN_NODES = "\n\n"

PromptTemplateLike = BasePromptTemplate | str | Callable[[str, Sequence[Document]], str]


class Renders(Protocol):
    """An LLM that tells what it makes of a prompt, as RAGCacheLLM does."""

    def render(self, template: BasePromptTemplate, **prompt_args: Any) -> str: ...


def as_template(
    template: PromptTemplateLike, llm: Renders | None = None
) -> Callable[[str, Sequence[Document]], str]:
    """A function (question, documents) -> prompt, as the engine takes it.

    template: the text_qa_template of a synthesizer in its "compact" mode, which trims the nodes' texts
      and leaves out blank ones; a text such as "{context_str}\\n\\n{query_str}" for the same; or such a
      function, for whatever else a pipeline does.
    llm: what is asked with it, which may write it as a conversation or put a system prompt before it.
    Raises ValueError for anything else, or slots of which it cannot be told what they are for.
    """
    if not isinstance(template, str | BasePromptTemplate):
        if not callable(template):
            raise ValueError(f"template takes a prompt, a text or a function, got {template!r}")
        return template
    # Braces in a text mean what they mean to LlamaIndex.
    prompt = PromptTemplate(template) if isinstance(template, str) else template
    write = _fill_with(prompt, partial(llm.render, prompt) if llm else prompt.format)

    def write_prompt(question_text: str, documents: Sequence[Document]) -> str:
        trimmed = [Document(document.id, document.text.strip()) for document in documents]
        return write(question_text, [document for document in trimmed if document.text])

    return write_prompt


def _fill_with(
    template: BasePromptTemplate, fill: Callable[..., str]
) -> Callable[[str, Sequence[Document]], str]:
    # What fills it takes the names that LlamaIndex asks with, whatever the template itself calls them.
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
