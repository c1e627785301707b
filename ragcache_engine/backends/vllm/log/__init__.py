"""Where vLLM's log goes: into a file of each engine, or to where vLLM itself would show it.

vLLM runs in several processes. In the caller's process a handler on vLLM's own logger writes the file
(`this_process`). In vLLM's processes everything goes there, also what C++ libraries print (`children`,
`spawning`), but for the warnings of RAGCache's classes there: they come back to the caller's process
(`own_warnings`). `excerpt` finds in the file why vLLM ended. Importable without vLLM.
"""

from ragcache_engine.backends.vllm.log.engine_log import EngineLog, FileLog, ShownLog, choose_log

__all__ = ["EngineLog", "FileLog", "ShownLog", "choose_log"]
