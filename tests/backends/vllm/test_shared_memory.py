"""The host tier's memory: too little of it, and whose it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ragcache_engine.backends.vllm import shared_memory

psutil = pytest.importorskip("psutil")
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
@pytest.mark.program
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


HOLDS = """
import sys
from pathlib import Path
from ragcache_engine.backends.vllm import shared_memory

shared_memory.FOLDER = Path(sys.argv[1])
claim = shared_memory.claim(shared_memory.name_memory("other"), 4096)
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("namespace", [(), ("unshare", "--pid", "--fork", "--kill-child")])
@pytest.mark.slow
def test_the_memory_of_a_living_engine_stays_even_of_one_in_another_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, namespace: tuple[str, ...]
):
    if namespace:
        needs("--pid", "--fork", "true")
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    words = [*namespace, sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as living:
        assert living.stdout
        assert living.stdout.readline() == "holds\n"
        (memory,) = tmp_path.iterdir()
        shared_memory.remove_abandoned()
        assert memory.exists()
        for process in psutil.Process(living.pid).children() or [living]:  # unshare ends with it
            process.kill()
    shared_memory.remove_abandoned()
    assert not memory.exists()


def test_memory_that_is_not_ours_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    strange = tmp_path / f"{shared_memory.PREFIX}somebody-else.mmap"
    strange.touch()
    shared_memory.remove_abandoned()
    assert strange.exists()


def test_all_processes_of_an_engine_get_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    with shared_memory.claim(shared_memory.name_memory("one"), 8192) as first:
        with shared_memory.claim(shared_memory.name_memory("one"), 8192) as second:
            assert os.path.samestat(os.fstat(first.fileno()), os.fstat(second.fileno()))
            assert os.fstat(second.fileno()).st_size == 8192
        shared_memory.remove_abandoned()
        assert len(list(tmp_path.iterdir())) == 1, "the first process still has its lock"


def test_memory_that_there_is_not_is_refused_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    monkeypatch.setattr(shared_memory, "free_bytes", lambda: 4096)
    with pytest.raises(OSError, match="--shm-size"):
        shared_memory.claim(shared_memory.name_memory("one"), 8192)
    assert not list(tmp_path.iterdir())


HAS_A_HOST_TIER = """
import psutil, time
from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions

if __name__ == "__main__":
    engine = RAGCacheEngine(EngineConfig(
        model={model!r}, backend="vllm", device_cache="200MiB", host_cache="64MiB",
        vllm_args={{"max_model_len": 1024, "dtype": "float32"}},
    ))
    engine.generate("A prompt of some blocks. " * 40, options=SamplingOptions(max_tokens=1))
    children = psutil.Process().children(recursive=True)
    # Python's own process that removes the shared memory of vLLM's queues may stay.
    print(*(c.pid for c in children if "tracker" not in " ".join(c.cmdline())), flush=True)
    time.sleep(600)
"""


@pytest.mark.vllm
@pytest.mark.program
def test_engines_whose_processes_are_all_killed_at_once_leave_no_memory(
    demo_model: str, tmp_path: Path
):
    script = tmp_path / "has_a_host_tier.py"
    script.write_text(HAS_A_HOST_TIER.format(model=demo_model))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout
        ids = map(int, one.stdout.readline().split())
        processes = [psutil.Process(one.pid), *map(psutil.Process, ids)]
        maps = "".join(Path(f"/proc/{process.pid}/maps").read_text() for process in processes)
        assert maps.count(shared_memory.PREFIX) >= 2, "the scheduler and the worker share it"
        used = {word for word in maps.split() if shared_memory.PREFIX in word}
        for process in processes:
            process.kill()
    assert len(used) == 1
    assert not Path(used.pop()).exists()
