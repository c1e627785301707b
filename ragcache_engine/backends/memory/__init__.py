"""An engine without a model, in the caller's process and on a virtual clock: see MemoryBackend."""

from ragcache_engine.backends.memory.backend import MemoryBackend, Stall, linear_prefill
from ragcache_engine.backends.memory.replies import echo
from ragcache_engine.simulation.scheduler import PrefillTime

__all__ = ["MemoryBackend", "PrefillTime", "Stall", "echo", "linear_prefill"]
