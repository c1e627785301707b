"""The model that is measured: the user's, or one of a 7B's shape with random weights.

How long a prefill takes depends on the shape, not on the values. The tokenizer is the demo model's, so
that real documents and questions become real token sequences. The answers are noise, but the same noise
each time, so that the answers of two systems can be compared.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from gpu.asking import OurEngine
from gpu.run import Run
from ragcache_cli.models import demo_model

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


def write_model(folder: Path, tokenizer: Path, layers: int, width: int) -> None:
    """Write the folder, without weights. tokenizer: a model folder, whose tokenizer is used."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    config = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
    made = shape(layers, width, config["vocab_size"])
    (folder / "config.json").write_text(json.dumps(made, indent=1), encoding="utf-8")


def write_weights(folder: Path, dtype: str) -> int:
    """Fill the folder with random weights of its shape; return their bytes.

    They are drawn on the GPU if there is one. dtype: a name of torch's, such as "bfloat16". The files
    get their names when all are written: half a model is none.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = getattr(torch, dtype)
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=kind)  # type: ignore[no-untyped-call]
    where = "cuda" if torch.cuda.is_available() else "cpu"
    unnamed: list[Path] = []

    def save(tensors: dict[str, Any]) -> None:
        unnamed.append(folder / f"model-{len(unnamed)}.part")
        save_file(tensors, unnamed[-1], {"format": "pt"})

    part: dict[str, Any] = {}
    total = held = 0
    for name, each in model.state_dict().items():
        if "norm" in name:
            made = torch.ones(each.shape, dtype=kind)
        else:
            made = (torch.randn(each.shape, device=where, dtype=kind) * 0.02).cpu()
        part[name] = made
        total, held = total + made.nbytes, held + made.nbytes
        if held > FILE_BYTES:
            save(part)
            part, held = {}, 0
    save(part)
    for file in unnamed:
        file.rename(file.with_suffix(".safetensors"))
    return total


async def weights(run: Run, detail: str) -> None:
    """Write a model of a 7B's shape with random weights: a disk tier wants files that it can name."""
    sizes, folder = run.sizes, run.model_folder
    write_model(folder, demo_model(), sizes.layers, sizes.width)
    began = time.perf_counter()
    size_bytes = write_weights(folder, sizes.dtype)
    run.emit("weights", bytes=size_bytes, seconds=round(time.perf_counter() - began, 1))


def load(run: Run) -> dict[str, Any]:
    """Return which model to start, and how: the user's, or random weights from files, or from nowhere."""
    sizes = run.sizes
    if run.model:
        return {"model": run.model}
    folder = run.model_folder
    if next(folder.glob("*.safetensors"), None):
        return {"model": str(folder)}
    write_model(folder, demo_model(), sizes.layers, sizes.width)
    return {"model": str(folder), "load_format": "dummy"}


def token_bytes(model: str, dtype: str) -> int:
    """Return the bytes of a token's keys and values. model: a folder, or the hub id of one."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model).get_text_config()
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    numbers = 2 * config.num_hidden_layers * (config.num_key_value_heads or heads) * head
    return int(numbers * (4 if dtype == "float32" else 2))


def our_engine(run: Run, *, device: int, host: int, **settings: Any) -> OurEngine:
    """Start RAGCache on the large model. device, host: tokens."""
    given = load(run)
    model, dtype = given.pop("model"), run.sizes.dtype
    each = token_bytes(model, dtype)
    return OurEngine(
        model=model,
        device_cache=device * each,
        host_cache=host * each,
        vllm_args=run.vllm_args(dtype, max_model_len=run.sizes.context, **given),
        **settings,
    )
