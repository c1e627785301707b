"""The engines that work beside the one under test, each in a process of its own."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serve_command import serving

from ragcache_engine import RAGCacheEngine

SAME_FOLDER, ANYWHERE, SERVER = "same folder", "anywhere", "server"
KINDS = (SAME_FOLDER, ANYWHERE, SERVER)
"""One with a disk cache half as large in the same folder; one that reuses documents at any position; and
a client of `ragcache serve`, which does so too. The last two have a folder of their own."""

BORROWING: dict[str, Any] = {"reuse": "anywhere", "recompute_ratio": 0.1}
OPERATOR_KEY = "the key of an operator"


@contextmanager
def open_other(
    kind: str, make_config: Callable[..., Any], folder: Path, sizes: dict[str, int], context: int
) -> Iterator[RAGCacheEngine]:
    """Start one of KINDS until the block ends.

    make_config: takes the bytes of the disk cache, its folder and further settings. sizes: bytes of
    device, host and disk. folder: that of the engine under test. context: tokens of the model.
    """
    if kind == SAME_FOLDER:
        with RAGCacheEngine(make_config(sizes["disk"] // 2, folder)) as engine:
            yield engine
        return
    with tempfile.TemporaryDirectory(prefix="ragcache-soak-") as own:
        config = make_config(sizes["disk"], Path(own) / "kv", **BORROWING)
        if kind == ANYWHERE:
            with RAGCacheEngine(config) as engine:
                yield engine
            return
        os.environ["RAGCACHE_OPERATOR_KEY"] = OPERATOR_KEY
        arguments = (config.model, "--host-cache", str(sizes["host"]), "--reuse", "anywhere")
        disk = ("--disk-cache", str(sizes["disk"]), "--disk-cache-dir", str(Path(own) / "kv"))
        ratio = ("--recompute-ratio", str(BORROWING["recompute_ratio"]))
        device = ("--kv-cache-memory-bytes", str(sizes["device"]))
        vllm = ("--dtype", "float32", "--max-model-len", str(context), *device)
        with serving((*arguments, *disk, *ratio), vllm, Path(own) / "log") as (url, process):
            with RAGCacheEngine.connect(url, api_key=OPERATOR_KEY) as engine:
                yield engine
            process.send_signal(signal.SIGTERM)
            process.wait(60)
