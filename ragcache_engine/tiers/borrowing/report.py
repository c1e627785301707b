"""Values that tell, for each document of a prompt, where its tensors came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragcache_engine.knowledge import Tier


@dataclass(frozen=True, slots=True)
class DocumentReuse:
    """Where the tensors of one document in a prompt came from.

    tokens: of the document. tier: where they were when the request came; None if they were computed for
      it. borrowed: tokens taken from another context. recomputed: tokens of a borrowed document that were
      computed anew in this prompt. The other tokens are exact.
    joined: tokens between it and the document before it that were borrowed with it; none of `tokens`.
    """

    document: str
    tokens: int
    tier: str | None
    borrowed: int = 0
    recomputed: int = 0
    joined: int = 0


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """What a prompt that borrowed has reused, document by document, in its order.

    joined_tokens: tokens between documents that were computed anew.
    """

    documents: Sequence[DocumentReuse]
    joined_tokens: int = 0

    @property
    def borrowed_by_tier(self) -> dict[str, int]:
        """Tokens borrowed from tensors that were there already, by tier."""
        tokens = {tier.value: 0 for tier in Tier}
        for document in self.documents:
            if document.tier is not None:
                tokens[document.tier] += document.borrowed + document.joined
        return tokens

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of borrowed documents that were computed anew."""
        return sum(document.recomputed for document in self.documents)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, to send to another process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ReuseReport:
        """Make a report from what to_dict() returned."""
        documents = tuple(DocumentReuse(**document) for document in content["documents"])
        return cls(documents, content["joined_tokens"])
