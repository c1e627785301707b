"""An engine without a model, in the caller's process and on a virtual clock: see MemoryBackend."""

from ragcache_engine.backends.memory.backend import (
    MemoryBackend,
    PrefillTime,
    Stall,
    echo,
    linear_prefill,
)

__all__ = ["MemoryBackend", "PrefillTime", "Stall", "echo", "linear_prefill"]
