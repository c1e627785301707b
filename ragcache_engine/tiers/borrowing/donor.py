"""Donors, and how they are packed: in eight bits a number, many tokens in the place of few.

A packed donor is a prompt of its own in the knowledge tree, of tokens that no vocabulary has. So tiers,
eviction, quotas, tenants, forgetting and keeping serve it as they serve every prompt, and no request of
anybody finds its blocks as if they were exact. It stands right behind the root: its tensors are of use
without those of the context that they were computed in.
"""

from __future__ import annotations

import array
from dataclasses import dataclass
from hashlib import sha256
from math import ceil

from ragcache_engine.tiers.prompts import SegmentEnd

LEAD_TOKENS = 8
"""So many tokens before its document a packed donor has, at most: the text between two documents, which
is copied with a ratio of 0."""

FORMAT = 1
"""Of packed blocks, in all that names them: another one where other bytes stand for a number."""

OUTSIDE_VOCABULARY = 1 << 24
"""No model has tokens from here on."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How packed tokens lie in blocks. number_bytes: bytes of one number in the cache's own type.

    The room of a block's last token is for scales.
    """

    block_tokens: int
    number_bytes: int

    @property
    def tokens(self) -> int:
        """How many packed tokens a block holds."""
        return (self.block_tokens - 1) * self.number_bytes


@dataclass(frozen=True, slots=True)
class Donor:
    """A prompt that lends the tensors of its last document.

    token_ids: system text, context, document, padded with its last token to a full block plus one token.
      vLLM reuses only full blocks and always computes the last token; the padding puts every lent token
      in a full block. The document ends with the last token that its context names. If none is named, its
      last token is left out. So a document has one donor, whatever stands behind it.
    segments: its runs, as a RequestMessage carries them.
    start: where the document begins in it; in a packed donor, at which packed token.
    packs: the donor that a packed one is made from, which has the text; None for one in the cache's type.
    """

    token_ids: tuple[int, ...]
    segments: tuple[SegmentEnd, ...]
    start: int
    packs: Donor | None = None

    @property
    def first(self) -> int:
        """The position at which the first packed token was computed; 0 for a donor that is not packed."""
        return 0 if self.packs is None else self.packs.start - self.start

    @property
    def packed_tokens(self) -> int:
        """How many tokens of its donor a packed one holds."""
        return 0 if self.packs is None else len(self.packs.token_ids) - 1 - self.first


def pack(donor: Donor, packing: Packing) -> Donor:
    """Return the packed form of a donor."""
    lead = min(donor.start, LEAD_TOKENS)
    tokens = len(donor.token_ids) - 1 - donor.start + lead
    length = ceil(tokens / packing.tokens) * packing.block_tokens
    content = array.array("q", [FORMAT, packing.number_bytes, donor.start, *donor.token_ids])
    digest = sha256(content.tobytes()).digest()
    name = [
        OUTSIDE_VOCABULARY + int.from_bytes(digest[at : at + 3], "little") for at in range(0, 30, 3)
    ][:length]
    # vLLM computes the last token, which stands behind the packed blocks.
    token_ids = (*name, *[OUTSIDE_VOCABULARY] * (length - len(name)), 0)
    *before, last = [document for _, document in donor.segments if document is not None]
    runs = [(at, document) for at, document in enumerate(before, 1)]
    return Donor(token_ids, (*runs, (length, last)), lead, donor)
