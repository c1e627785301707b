"""Write a model folder with the shape of a 7B. vLLM fills it with random weights (load_format="dummy").

    python benchmarks/gpu/random_model.py /tmp/random-7b
    python benchmarks/gpu/random_model.py /tmp/random-tiny --layers 2 --width 256     # to try on a CPU

How long a prefill takes depends on the shape, not on the values. The tokenizer is the demo model's, so
that real documents and questions become real token sequences. The answers are noise, but the same noise
each time, so that the answers of two systems can be compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

HEAD = 128
CONTEXT_TOKENS = 32_768


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="a model folder (default: the demo's)")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    given = parser.parse_args()
    if given.tokenizer is None:
        from ragcache_cli.models import demo_model

        given.tokenizer = demo_model()
    print(write_model(given.folder, given.tokenizer, given.layers, given.width))


if __name__ == "__main__":
    main()
