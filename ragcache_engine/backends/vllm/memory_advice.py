"""Says which sizes to lower where memory is short, and to what. Importable without vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20
CGROUP = Path("/sys/fs/cgroup")
OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "cannot allocate memory",
    "can't allocate memory",
    "no available memory",
    "not enough memory",
    "free memory on device",
    "memoryerror",
    "bad_alloc",
    "cudahostregister",
    "cudahostalloc",
    "pin memory",
    "no space left on device",  # shared memory is full
)
"""Words in the errors of an engine that had too little memory, in lower case."""


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """What an engine takes of memory, in bytes; 0 for what is not known.

    weights: of the model's files. device_cache: None if vLLM chooses it as a share of the device.
    is_cpu: whether weights and device cache lie in the host's memory. device_share: the share of a GPU
    that vLLM takes, 0 to 1.
    """

    weights_bytes: int
    device_cache_bytes: int | None
    host_cache_bytes: int
    max_model_len: int
    is_cpu: bool
    device_share: float = 0.0

    @property
    def of_host_bytes(self) -> int:
        """What it takes of the host's memory."""
        own = self.weights_bytes + (self.device_cache_bytes or 0) if self.is_cpu else 0
        return own + self.host_cache_bytes

    def describe_shortage(self, free_bytes: int) -> str | None:
        """Say that the host has too little memory, and what fits; None if it has enough."""
        if self.of_host_bytes <= free_bytes:
            return None
        begin = (
            f"this machine or container has {free_bytes // MIB:,} MiB of memory free, and the engine "
            f"takes {self.of_host_bytes // MIB:,} MiB: "
        )
        parts = [f"host_cache {self.host_cache_bytes // MIB:,} MiB"]
        device_bytes = 0
        if self.is_cpu:
            device_bytes = self.device_cache_bytes or 0
            parts = [
                f"weights {self.weights_bytes // MIB:,} MiB",
                f"device_cache {device_bytes // MIB:,} MiB",
                *parts,
            ]
        left = free_bytes - (self.weights_bytes if self.is_cpu else 0)
        if left <= 0:
            return f"{begin}{', '.join(parts)}. The weights alone do not fit: take a smaller model"
        host = max(0, left - device_bytes)
        fits = (
            f"host_cache={host // MIB}MiB fits"
            if self.host_cache_bytes and host
            else f"device_cache={left // MIB}MiB without a host_cache fits"
        )
        return f"{begin}{', '.join(parts)}. {fits}"

    def describe_remedy(self) -> str:
        """Say what to lower when memory ran out, with the values that are set now."""
        lower = []
        if self.device_cache_bytes:
            lower.append(f"device_cache (now {self.device_cache_bytes // MIB:,} MiB)")
        elif not self.is_cpu:
            lower.append(f"gpu_memory_utilization in vllm_args (now {self.device_share:g})")
        if self.host_cache_bytes:
            lower.append(f"host_cache (now {self.host_cache_bytes // MIB:,} MiB)")
        lower.append(f"max_model_len in vllm_args (now {self.max_model_len:,})")
        return f"lower {', '.join(lower[:-1])} or {lower[-1]}" if lower[1:] else f"lower {lower[0]}"


def tells_of_memory(text: str) -> bool:
    """Return whether an error, or the end of a log, says that memory ran out."""
    text = text.lower()
    return any(words in text for words in OF_MEMORY)


def weights_bytes(model: str) -> int:
    """Return the size of the weights in a model's folder; 0 for a model that is in none."""
    folder = Path(model).expanduser()
    return sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())


def free_host_bytes() -> int:
    """Return how much memory this process may still get: a container's limit counts where it is lower."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container, or "max"
        return free
    return min(free, max(0, limit - used + int(stat.get("inactive_file", 0))))
