from types import SimpleNamespace

import pytest

from ragcache_cli.model_prompts import ASK_INSTRUCTION
from ragcache_cli.prompts import CHATML, chat_form, form_of_model, plain_form
from ragcache_engine import ModelNotFound


class Tokenizer:
    """A tokenizer with a chat template, as a function of the messages."""

    def __init__(self, render, bos_token=None):
        self.chat_template = "some template"
        self.bos_token, self.bos_token_id = bos_token, 1 if bos_token else None
        self._render = render

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert add_generation_prompt
        assert not tokenize
        return self._render(messages)

    def __call__(self, text):
        return SimpleNamespace(input_ids=[1, 2] if self.bos_token else [2])


def chatml(messages):
    said = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join(said) + "<|im_start|>assistant\n"


def users_only(messages):
    if messages[0]["role"] == "system":
        raise ValueError("System role not supported")
    return "".join(f"[INST] {m['content']} [/INST]" for m in messages)


def test_passages_and_question_stand_where_they_belong():
    assert plain_form("Do it.").filled(["A", "B"], "Why?") == (
        "Do it.\n\nA\n\nB\n\nQuestion: Why?\n\nAnswer:"
    )


def test_a_chat_template_is_followed():
    instruction = (
        "You answer questions about Python from the given passages, in one or two sentences."
    )
    assert chat_form(Tokenizer(chatml), instruction) == CHATML


def test_a_template_without_system_messages_gets_the_instruction_from_the_user():
    form = chat_form(Tokenizer(users_only), "Do it.")
    assert form.filled(["A"], "Why?") == "[INST] Do it.\n\nA\n\nQuestion: Why? [/INST]"


def test_the_token_that_begins_a_text_is_left_to_the_engine():
    tokenizer = Tokenizer(lambda messages: "<s>" + chatml(messages), bos_token="<s>")
    assert chat_form(tokenizer, "Do it.").before.startswith("<|im_start|>system")


def test_a_model_without_a_chat_template_gets_a_plain_prompt():
    assert chat_form(SimpleNamespace(chat_template=None), "Do it.") == plain_form("Do it.")


def test_a_model_that_is_not_there_is_a_named_error(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="no tokenizer"):
        form_of_model(str(tmp_path), "Do it.")


def test_a_hub_out_of_reach_is_asked_once_and_not_again_and_again(monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Name or service not known")

    def asked_again(*_: object, **__: object) -> None:
        pytest.fail("transformers asks six times for each file")

    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", asked_again)
    with pytest.raises(ModelNotFound, match="hub could not be reached"):
        form_of_model("org/name", "Do it.")


def test_the_instruction_for_any_corpus_reads_well():
    assert ASK_INSTRUCTION == (
        "You answer questions from the given passages, in one or two sentences."
    )
