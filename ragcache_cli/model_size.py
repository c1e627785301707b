"""Computes how much memory a model needs from the files of its folder, without loading it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES_OF_DTYPE = {"float32": 4, "float16": 2, "bfloat16": 2}
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The memory that a model needs.

    kv_token_bytes: bytes of one token's keys and values in all layers. Fields are None if config.json
      does not tell.
    """

    weights_bytes: int
    kv_token_bytes: int | None
    context_tokens: int | None

    @property
    def context_bytes(self) -> int | None:
        """Bytes of key-value memory for a full context: the smallest device cache allowed."""
        if self.kv_token_bytes is None or self.context_tokens is None:
            return None
        return self.kv_token_bytes * self.context_tokens


def local_folder(model: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Find the model's folder on this machine: the one named, or the hub's cached copy; else None."""
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return path
    hub = environment.get("HF_HUB_CACHE") or os.path.join(
        environment.get("HF_HOME") or "~/.cache/huggingface", "hub"
    )
    snapshots = Path(hub).expanduser() / f"models--{model.replace('/', '--')}" / "snapshots"
    found = [config.parent for config in snapshots.glob("*/config.json")]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def model_size(folder: Path, dtype: str = "auto") -> ModelSize:
    """Read how much memory a model needs. Raises OSError or ValueError if config.json is unreadable.

    dtype: that of the keys and values, as vLLM spells it.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config  # models with vision keep it one level down
    context = config.get("max_position_embeddings")
    return ModelSize(_weights_bytes(folder), _kv_token_bytes(config, dtype), context)


def _weights_bytes(folder: Path) -> int:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        if total := content.get("metadata", {}).get("total_size"):
            return int(total)
    for pattern in WEIGHT_FILES:  # the same weights may lie there in several formats
        if sizes := [file.stat().st_size for file in folder.glob(pattern)]:
            return sum(sizes)
    return 0


def _kv_token_bytes(config: Mapping[str, Any], asked: str) -> int | None:
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not layers or not heads:
        return None
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // heads
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    # vLLM computes float32 checkpoints in 16 bits unless told otherwise.
    size = BYTES_OF_DTYPE.get(asked) or min(2, BYTES_OF_DTYPE.get(str(dtype), 2))
    return 2 * int(layers) * int(kv_heads) * int(head_dim) * size or None
