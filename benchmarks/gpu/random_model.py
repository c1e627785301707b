"""Writes a model folder with the shape of a 7B and random weights.

How long a prefill takes depends on the shape, not on the values. The tokenizer is the demo model's, so
that real documents and questions become real token sequences. The answers are noise, but the same noise
each time, so that the answers of two systems can be compared.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

HEAD = 128
CONTEXT_TOKENS = 32_768
FILE_BYTES = 4 << 30


def shape(layers: int, width: int, vocabulary: int) -> dict[str, Any]:
    """Return config.json of a Llama with four query heads for each key-value head, as in Mistral 7B."""
    heads = max(4, width // HEAD)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 7 * width // 2,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def write_model(folder: Path, tokenizer: Path, layers: int = 32, width: int = 4096) -> Path:
    """Write the folder. tokenizer: a model folder, whose tokenizer is used."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    config = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
    made = shape(layers, width, config["vocab_size"])
    (folder / "config.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
    return folder


def write_weights(folder: Path, dtype: str) -> int:
    """Fill the folder with random weights of its shape; return their bytes. Does nothing if it has some.

    They are drawn on the GPU if there is one. dtype: a name of torch's, such as "bfloat16".
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    if any(folder.glob("*.safetensors")):
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    kind = getattr(torch, dtype)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=kind)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    part: dict[str, Any] = {}
    total = held = number = 0
    for name, shape in [(name, each.shape) for name, each in model.state_dict().items()]:
        if "norm" in name:
            made = torch.ones(shape, dtype=kind)
        else:
            made = (torch.randn(shape, device=where, dtype=kind) * 0.02).cpu()
        part[name] = made
        total, held = total + made.nbytes, held + made.nbytes
        if held > FILE_BYTES:
            save_file(part, folder / f"model-{number}.safetensors", {"format": "pt"})
            part, held, number = {}, 0, number + 1
    save_file(part, folder / f"model-{number}.safetensors", {"format": "pt"})
    return total
