"""Compiled graphs of LangGraph, whose nodes may be chains. LangGraph need not be installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import Runnable


def is_graph(part: Any) -> bool:
    """Tell whether this is a compiled graph. Whoever has one has imported LangGraph."""
    pregel = sys.modules.get("langgraph.pregel")
    return pregel is not None and isinstance(part, pregel.Pregel)


def with_chains(graph: Any, chains: Mapping[str, Runnable[Any, Any]]) -> Any:
    """Return a copy of the graph with these chains in the nodes of these names."""
    nodes = dict(graph.nodes)
    for name, chain in chains.items():
        # Without subgraphs, the node looks for them in the new chain.
        nodes[name] = nodes[name].copy({"bound": chain, "subgraphs": None})
    return graph.copy({"nodes": nodes})
