"""Asks a tiny model on two workers (tensor parallelism) the same prompts twice, through small tiers.

    python tests/backends/vllm/two_workers.py FOLDER TOKENIZER

Prints one line of JSON: {"first", "again", "sources"}. The first time every prompt is computed; by the
second time the device has given most of them up.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

DOCUMENTS = 8


def main() -> None:
    # On a machine with one memory node, vLLM wants to be told which core each worker gets.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    from tiny_models import make_model

    from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions

    folder, tokenizer = map(Path, sys.argv[1:])
    make_model("multi-head", folder / "model", tokenizer)
    texts = [
        " ".join(f"word{(7 * at + 13 * number) % 97}" for at in range(60))
        for number in range(DOCUMENTS)
    ]
    config = EngineConfig.model_validate(
        {
            "model": str(folder / "model"),
            "backend": "vllm",
            "device_cache": "1MiB",
            "host_cache": "1500KiB",
            "disk_cache": "64MiB",
            "disk_cache_dir": folder / "kv",
            "vllm_args": {
                "dtype": "float32",
                "max_model_len": 512,
                "tensor_parallel_size": 2,
                "disable_custom_all_reduce": True,
            },
        }
    )
    options = SamplingOptions(max_tokens=8, ignore_eos=True)
    with RAGCacheEngine(config) as engine:
        rounds = [
            [
                engine.generate(f"{text} So?", [Document(f"d{number}", text)], options)
                for number, text in enumerate(texts)
            ]
            for _ in range(2)
        ]
    first, again = rounds
    sources = [answer.usage.cached for answer in again]
    print(
        json.dumps(
            {
                "first": [answer.token_ids for answer in first],
                "again": [answer.token_ids for answer in again],
                "sources": [[source.device, source.host, source.disk] for source in sources],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
