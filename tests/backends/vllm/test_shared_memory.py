"""The host tier's memory: too little of it, and whose it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("psutil")
pytest.importorskip("vllm")

SMALL_ROOM = 'mount -t tmpfs -o size=500m tmpfs /dev/shm && exec "$@"'

ASKS = """
from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions

if __name__ == "__main__":
    with RAGCacheEngine(EngineConfig(
        model={model!r}, backend="vllm", device_cache="200MiB", host_cache="1GiB",
        disk_cache="1GiB", disk_cache_dir={folder!r},
        vllm_args={{"max_model_len": 1024, "dtype": "float32"}},
    )) as engine:
        two = SamplingOptions(max_tokens=2, ignore_eos=True)
        print("answered", len(engine.generate("Why?", options=two).token_ids))
"""


def needs(*command: str) -> None:
    """Skip the test where the system does not let it make namespaces."""
    unshare = shutil.which("unshare")
    done = unshare and subprocess.run([unshare, *command], capture_output=True, check=False)
    if not done or done.returncode:
        pytest.skip("the system does not let tests make namespaces")


@pytest.mark.vllm
def test_in_a_container_with_little_shared_memory_the_engine_starts_without_host_tier(
    demo_model: str, tmp_path: Path
):
    needs("-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    script = tmp_path / "asks.py"
    script.write_text(ASKS.format(model=demo_model, folder=str(tmp_path / "disk")))
    words = ["unshare", "-m", "bash", "-c", SMALL_ROOM, "bash", sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "answered 2\n", done.stderr
    assert "the host tier is switched off, and the disk tier with it" in done.stderr
