"""Asks tiny models of several kinds, with random weights, the same questions with and without tiers.

    python tests/backends/vllm/tiny_models.py FOLDER TOKENIZER KIND [KIND ...]

Prints one line of JSON a kind: {"kind", "stock", "tiers", "sources", "warnings"}. All engines run in this
process, one after the other, because starting processes would take most of the time.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from vllm import SamplingParams
from vllm.inputs import tokens_input
from vllm.v1.engine.llm_engine import LLMEngine

from ragcache_engine.backends.vllm import tier_arguments
from ragcache_engine.backends.vllm.arguments import build_vllm_config
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.tiers.wire import RequestMessage

SYSTEM, DOCUMENT, DOCUMENTS = 32, 128, 8
SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.5,  # so that answers differ by prompt
}
SMALL_MAMBA = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": 256,
}
WINDOWS = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "multi-head": ("LlamaConfig", {"num_key_value_heads": 4}),
    "grouped-query": ("LlamaConfig", {}),
    "mixture-of-experts": (
        "MixtralConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "sliding-window": ("MistralConfig", {"sliding_window": 64}),
    "interleaved-windows": ("Gemma3TextConfig", WINDOWS),
    "found-late": ("Gemma3TextConfig", WINDOWS),
    "hybrid": ("FalconH1Config", {**SMALL_MAMBA, "hidden_size": 128}),
}
BLOCKS = {"interleaved-windows": 60, "found-late": 60, "hybrid": 60}
"""Blocks of device memory, where 20 do not hold one request."""


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def make_model(kind: str, folder: Path, tokenizer: Path) -> None:
    name, changes = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**SHAPE, **changes})
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, folder / file)


def prompts() -> list[tuple[list[int], str]]:
    """Each document with two questions; by the second, a small device has given the document up."""
    documents = [
        [(7 * at + 13 * number) % 4000 + 5 for at in range(DOCUMENT)] for number in range(DOCUMENTS)
    ]
    return [
        ([5] * SYSTEM + document + [9, 8, question], f"d{number}")
        for question in (1, 2)
        for number, document in enumerate(documents)
    ]


def ask(model: Path, *, with_tiers: bool, blocks: int = 20) -> tuple[list[list[int]], list[Any]]:
    """Return the answers' tokens, and where each prompt's tokens came from (None without tiers).

    blocks: of device memory, with tiers.
    """
    arguments: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 4}
    if with_tiers:
        arguments["num_gpu_blocks_override"] = blocks
    else:
        arguments["kv_transfer_config"] = None
    if not with_tiers or model.name == "hybrid":
        # vLLM 0.32's own prefix cache fails on a CPU with a hybrid model: an index out of bounds.
        arguments["enable_prefix_caching"] = False
    budget = TierBudget(
        policy="halflife",
        host_bytes=2 << 20,
        disk_bytes=64 << 20,
        disk_folder=model.parent / f"{model.name}-disk",
        reorder_window=32,
    )
    config = build_vllm_config(str(model), 64 << 20, budget, arguments)
    engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
    answers, sources = [], []
    for number, (prompt, document) in enumerate(prompts()):
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        if with_tiers:
            message = RequestMessage([(SYSTEM, None), (SYSTEM + DOCUMENT, document)])
            params.extra_args = {"kv_transfer_params": message.to_dict()}
        engine.add_request(str(number), tokens_input(prompt), params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    answers.append(list(output.outputs[0].token_ids))
                    told = (getattr(output, "kv_transfer_params", None) or {}).get("ragcache")
                    sources.append(told and told["tokens"])
    engine.engine_core.shutdown()
    del engine
    gc.collect()
    return answers, sources


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    folder, tokenizer, *kinds = sys.argv[1:]
    warnings = Warnings()
    logging.getLogger("ragcache_engine").addHandler(warnings)
    for kind in kinds:
        if kind == "found-late":  # as for a model whose configuration does not tell
            tier_arguments._unsupported = lambda model: None
        model = Path(folder) / kind
        make_model(kind, model, Path(tokenizer))
        stock, _ = ask(model, with_tiers=False)
        warnings.texts.clear()
        tiers, sources = ask(model, with_tiers=True, blocks=BLOCKS.get(kind, 20))
        seen = {"stock": stock, "tiers": tiers, "sources": sources, "warnings": warnings.texts}
        print(json.dumps({"kind": kind, **seen}), flush=True)


if __name__ == "__main__":
    main()
