"""The form of a prompt around passages and question, as the model knows it from its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragcache_cli.extras import needed
from ragcache_engine import ModelNotFound

INSTRUCTION = "You answer questions {about} from the given passages, in one or two sentences."
BETWEEN_PASSAGES = "\n\n"
BEFORE_QUESTION = "\n\nQuestion: "

_PASSAGES_HERE, _QUESTION_HERE = "<<the passages>>", "<<the question>>"


@dataclass(frozen=True, slots=True)
class PromptForm:
    """The fixed parts of a prompt: before the passages, between them and the question, and after it."""

    before: str
    between: str
    after: str

    def filled(self, passages: Sequence[str], question: str) -> str:
        """Return the prompt with these passages and this question."""
        context = BETWEEN_PASSAGES.join(passages)
        return f"{self.before}{context}{self.between}{question}{self.after}"


CHATML = PromptForm(
    before="<|im_start|>system\n"
    + INSTRUCTION.format(about="about Python")
    + "<|im_end|>\n<|im_start|>user\n",
    between=BEFORE_QUESTION,
    after="<|im_end|>\n<|im_start|>assistant\n",
)
"""The ChatML form of the demo's model, written out because completion classes send prompts unchanged."""


def plain_form(instruction: str) -> PromptForm:
    """Make the form for a model without a chat template."""
    return PromptForm(f"{instruction}\n\n", BEFORE_QUESTION, "\n\nAnswer:")


def chat_form(tokenizer: Any, instruction: str) -> PromptForm:
    """Make the form from the tokenizer's chat template; a plain one if it has none.

    Some templates refuse a system message: then the user's message begins with the instruction. The
    template's begin-of-text token is left out, since the engine adds it to every prompt.
    """
    if not getattr(tokenizer, "chat_template", None):
        return plain_form(instruction)
    content = f"{_PASSAGES_HERE}{BEFORE_QUESTION}{_QUESTION_HERE}"
    user = {"role": "user", "content": content}
    try:
        text = _rendered(tokenizer, [{"role": "system", "content": instruction}, user])
        if instruction not in text:
            raise ValueError("the template drops the system message")
    except Exception:  # a template is a program, which may raise anything
        user["content"] = f"{instruction}\n\n{content}"
        text = _rendered(tokenizer, [user])
    before, _, rest = text.partition(_PASSAGES_HERE)
    between, _, after = rest.partition(_QUESTION_HERE)
    return PromptForm(before.removeprefix(_added_by_engine(tokenizer)), between, after)


def form_of_model(model: str, instruction: str) -> PromptForm:
    """Make the form for a model folder or hub id. Raises MissingExtra, ModelNotFound."""
    with needed("the model's chat template"):
        from transformers import AutoTokenizer

        from ragcache_engine.backends.vllm.model_lookup import require_model
    require_model(model)  # transformers would ask a hub out of reach for a minute
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelNotFound(
            f"no tokenizer for the model {model!r}: {reason}; give a model folder, or a hub id "
            f"while the hub can be reached"
        ) from error
    return chat_form(tokenizer, instruction)


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(text)


def _added_by_engine(tokenizer: Any) -> str:
    token = getattr(tokenizer, "bos_token", None) or ""
    ids = tokenizer("x").input_ids
    adds = bool(token) and bool(ids) and ids[0] == getattr(tokenizer, "bos_token_id", None)
    return token if adds else ""
