"""What an observer is told of the knowledge tree: plain values, bounded in size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ragcache_engine.tiers.bloom_filter import BloomFilter
from ragcache_engine.tiers.counters import BlocksByTier, DiskState
from ragcache_engine.tiers.provenance import TracedDocument

MOST_DOCUMENTS = 500
"""A snapshot lists no more documents than this."""


@dataclass(frozen=True, slots=True)
class DocumentBlocks:
    """What the tiers hold of one document.

    documents: its id; several ids where short documents share their blocks.
    contexts: behind how many different texts it is cached. uses: how often requests used it lately.
    blocks: blocks in all contexts, each counted in the fastest tier that has it.
    """

    documents: tuple[str, ...]
    contexts: int
    uses: int
    blocks: BlocksByTier

    @property
    def total_blocks(self) -> int:
        """Blocks in all tiers together."""
        return sum(self.blocks.values())


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that ended, as the scheduler saw it. All times are seconds, from its arrival.

    ended_at: when it ended, in seconds since 1970. waited_s: until it had its device memory.
    first_token_s: None if it had none. cached: cached prompt tokens by tier.
    documents: the named documents, in the prompt's order.
    """

    name: str
    ended_at: float
    waited_s: float
    first_token_s: float | None
    total_s: float
    prompt_tokens: int
    cached: Mapping[str, int] = field(default_factory=dict)
    documents: tuple[TracedDocument, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, to send to another process."""
        content = {name: getattr(self, name) for name in self.__slots__}
        content["documents"] = [document.to_list() for document in self.documents]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what to_dict() returned."""
        documents = tuple(map(TracedDocument.from_list, content["documents"]))
        return cls(**{**content, "documents": documents})


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The knowledge tree at one moment.

    documents: those with most blocks, the largest first.
    other_documents, other_blocks: how many more there are, and their blocks together.
    unnamed_blocks: blocks of text that no prompt named a document: system prompts and questions.
    nodes: how many nodes the tree remembers, cached or not.
    waiting, running: requests in the scheduler. disk_reads, disk_writes: blocks under way.
    held, capacity: blocks each tier holds, and may hold; a block that several tiers have counts in each.
    requests: the last requests that ended, the oldest first, as the scheduler saw them.
    bloom_filter: all documents in device and host memory, for a reader who asked for it, if there are
      more of them than a list may have.
    age_s: how many seconds before this moment the pass over the tree began that saw these documents: a
      large tree is seen over several looks. None if no pass is complete yet, so that none are listed.
    """

    documents: tuple[DocumentBlocks, ...] = ()
    other_documents: int = 0
    other_blocks: BlocksByTier = field(default_factory=BlocksByTier)
    unnamed_blocks: BlocksByTier = field(default_factory=BlocksByTier)
    nodes: int = 0
    waiting: int = 0
    running: int = 0
    disk: DiskState = DiskState.NONE
    disk_reads: int = 0
    disk_writes: int = 0
    held: BlocksByTier = field(default_factory=BlocksByTier)
    capacity: BlocksByTier = field(default_factory=BlocksByTier)
    block_tokens: int = 0
    requests: tuple[ServedRequest, ...] = ()
    bloom_filter: BloomFilter | None = None
    age_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, to send to another process."""
        content = {name: getattr(self, name) for name in self.__slots__}
        content["documents"] = [
            [list(each.documents), each.contexts, each.uses, list(each.blocks.values())]
            for each in self.documents
        ]
        content["requests"] = [request.to_dict() for request in self.requests]
        content["disk"] = self.disk.value
        content["bloom_filter"] = self.bloom_filter.to_text() if self.bloom_filter else None
        for name in _BY_TIER:
            content[name] = list(content[name].values())
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what to_dict() returned."""
        read = dict(content)
        read["documents"] = tuple(
            DocumentBlocks(tuple(names), contexts, uses, BlocksByTier(*blocks))
            for names, contexts, uses, blocks in content["documents"]
        )
        read["requests"] = tuple(map(ServedRequest.from_dict, content["requests"]))
        read["disk"] = DiskState(content["disk"])
        bloom_filter = content.get("bloom_filter")
        read["bloom_filter"] = BloomFilter.from_text(bloom_filter) if bloom_filter else None
        for name in _BY_TIER:
            read[name] = BlocksByTier(*content[name])
        return cls(**read)


_BY_TIER = ("other_blocks", "unnamed_blocks", "held", "capacity")
