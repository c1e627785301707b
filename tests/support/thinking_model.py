"""Makes a model that thinks of the small one: its thoughts end where its first sentence would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

OPEN, CLOSE = ("<repo_name>", "<think>"), ("<reponame>", "</think>")
"""Tokens that the small model never writes, and what they become."""

STRENGTH = 1.5
"""The logit of the end of the thoughts is so many times a full stop's, in whose place it comes."""

TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>{% if enable_thinking is defined and not enable_thinking %}</think>

{% endif %}{% endif %}"""


def make_thinking_model(model: str, folder: Path) -> str:
    """Write the model into the folder, and return its path."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for old, new in (OPEN, CLOSE):
        vocabulary[new] = vocabulary.pop(old)
        (token,) = (one for one in tokenizer["added_tokens"] if one["content"] == old)
        token |= {"content": new, "special": False}
    file.write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    weights = load_file(folder / "model.safetensors")
    (words,) = (table for name, table in weights.items() if "embed_tokens" in name)
    words[vocabulary[OPEN[1]]] = words[vocabulary["Ċ"]]  # read as the line break that it stands for
    words[vocabulary[CLOSE[1]]] = STRENGTH * words[vocabulary["."]]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
