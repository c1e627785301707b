"""Where the vLLM versions that RAGCache supports differ. No other module asks which version it runs on.

tests/backends/vllm/test_differences.py notices when one of these parts moves again.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

try:
    from vllm.exceptions import ChatTemplateResolutionError  # type: ignore[attr-defined]
except ImportError:  # vLLM 0.32
    from vllm.renderers.chat_utils import ChatTemplateResolutionError

__all__ = ["ChatTemplateResolutionError", "map_on_demand"]


def map_on_demand() -> dict[str, Any]:
    """Return the arguments with which SharedOffloadRegion maps a file and fills none of its pages.

    The file must exist in its whole length.
    """
    if "populate_only_on_creator" in signature(SharedOffloadRegion).parameters:  # vLLM 0.32
        return {"populate_only_on_creator": True, "barrier": lambda: None}
    return {"populate_shard": (1, 1)}  # of one share the second, which is empty
