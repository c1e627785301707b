"""What a retriever's `stream_stages` yields."""

from __future__ import annotations

from typing import NamedTuple

from llama_index.core.schema import NodeWithScore


class NodeStage(NamedTuple):
    """What a search would return if it ended now.

    nodes: nearest first. fraction_done: the share of the search that is done, in (0, 1].
    final: whether these are what `retrieve` returns.
    """

    nodes: list[NodeWithScore]
    fraction_done: float
    final: bool
