"""Plans what a prompt borrows: which tokens are exact, copied and recomputed. Pure functions.

A prompt is [system text, document 1, document 2, ..., question]. The system text and the first document
stand where they always stand, so they are exact. Each later document is borrowed from a *donor*: the
prompt [system text, context, document], whose tensors of the document are copied and turned to the new
position. The context is empty, or a neighbour of the document in the corpus. So a donor depends on the
document, the system text and the corpus, and not on what others asked before.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from math import ceil
from typing import NamedTuple

from ragcache_engine.tiers.prompts import SegmentEnd


class WhyExact(StrEnum):
    """Why a prompt borrows nothing."""

    ASKED = "the request asked for an exact answer"
    FEW_DOCUMENTS = "the prompt has fewer than two documents"
    SHORT = "the documents after the first are so short that borrowing gains nothing"
    TOO_LONG = "a document and its context are longer than the model's context"
    NO_ROOM = "device memory does not hold the prompt and its donors at once"
    OTHER_INPUT = "token ids alone do not determine the tensors"
    DRIFTED = "switched off: answers drifted"
    PROMPT_LOGPROBS = "prompt_logprobs need every token to be computed"


class DocumentSpan(NamedTuple):
    """A document's tokens [start, end) in a prompt."""

    document: str
    start: int
    end: int

    @property
    def lent_end(self) -> int:
        """Where the tokens end that a donor lends.

        The last token may be another one where something else follows, as in ".\\n\\n", so it is no part
        of the donor: then a document has one donor, whatever stands behind it.
        """
        return max(self.start + 1, self.end - 1)


@dataclass(frozen=True, slots=True)
class Donor:
    """A prompt that lends the tensors of its last document.

    token_ids: the system text, the context and the document without its last token; then the last one of
      these again up to the end of the block, and once more. So every token that is lent lies in a whole
      block, and vLLM, which always computes the last token of a prompt, can take all of these blocks from
      a cache.
    segments: its runs, as a RequestMessage carries them.
    start: where the document begins in it.
    """

    token_ids: tuple[int, ...]
    segments: tuple[SegmentEnd, ...]
    start: int


class TokenCopy(NamedTuple):
    """Copy `tokens` tokens from position `source` of a donor to position `target` of the prompt.

    donor: the donor's place in the plan.
    """

    donor: int
    source: int
    target: int
    tokens: int

    def until(self, end: int) -> TokenCopy:
        """Return the part of the copy before a position of the prompt."""
        return self._replace(tokens=min(self.tokens, end - self.target))


@dataclass(frozen=True, slots=True)
class BorrowPlan:
    """What a prompt borrows.

    exact_blocks: leading blocks that are exact, and shared with every prompt that begins so. They hold
      the system text and the first document.
    end: the end of the last document. The tokens after it are computed as ever.
    documents: the documents, in the prompt's order.
    donors: one for each document, in their order. The first one lends nothing but the end of the first
      document, in its own place: what lies in a block that the prompt shares with nobody.
    copies: what to copy. recomputed: positions to compute anew in this prompt, rising. Together they are
      all positions from the end of the exact blocks to `end`.
    digest: tells this plan from all others for the same tokens.
    """

    exact_blocks: int
    end: int
    documents: tuple[DocumentSpan, ...]
    donors: tuple[Donor, ...]
    copies: tuple[TokenCopy, ...]
    recomputed: tuple[int, ...]
    digest: bytes

    def after(self, position: int) -> tuple[list[TokenCopy], list[int]]:
        """Return the copies and the recomputed positions that lie at or behind a position."""
        copies = []
        for copy in self.copies:
            skip = max(0, position - copy.target)
            if skip < copy.tokens:
                copies.append(
                    TokenCopy(
                        copy.donor, copy.source + skip, copy.target + skip, copy.tokens - skip
                    )
                )
        return copies, [at for at in self.recomputed if at >= position]


def find_spans(
    segments: Sequence[SegmentEnd], prompt_tokens: int, starts: Sequence[int] = ()
) -> list[DocumentSpan]:
    """Return the documents among a prompt's segments. starts: as in `plan_borrowing`."""
    spans, at = [], 0
    texts = iter(starts)
    for end, document in segments:
        end = min(end, prompt_tokens)
        begin = next(texts, at) if document is not None else at
        if document is not None and end > at:
            spans.append(DocumentSpan(document, min(max(at, begin), end - 1), end))
        at = max(at, end)
    return spans


def plan_borrowing(
    token_ids: Sequence[int],
    segments: Sequence[SegmentEnd],
    *,
    contexts: Mapping[str, tuple[str, Sequence[int]]],
    ratio: float,
    block_tokens: int,
    context_tokens: int,
    device_blocks: int,
    least_tokens: int = 0,
    starts: Sequence[int] = (),
) -> BorrowPlan | WhyExact:
    """Plan what a prompt borrows, or say why it borrows nothing. A function of its arguments alone.

    segments: as a RequestMessage carries them. contexts: for each document its context, as that
      document's id and token ids; a document without one is stored alone behind the system text.
    ratio: how many of a borrowed document's tokens to compute anew, 0 to 1; its first ones.
    context_tokens: the most tokens of a prompt. device_blocks: how many blocks the device has.
    least_tokens: the fewest tokens of documents behind the first for which borrowing can pay.
    starts: for each document where its own text begins, behind what stands between it and the one before;
      without them, at the end of the run before.
    """
    spans = find_spans(segments, len(token_ids), starts)
    if len(spans) < 2:
        return WhyExact.FEW_DOCUMENTS
    if sum(span.end - span.start for span in spans[1:]) < least_tokens:
        return WhyExact.SHORT
    system = token_ids[: spans[0].start]
    donors = [_make_donor(system, None, token_ids, spans[0], block_tokens)]
    for span in spans[1:]:
        context = contexts.get(span.document)
        donors.append(_make_donor(system, context, token_ids, span, block_tokens))
    if max(len(donor.token_ids) for donor in donors) > context_tokens:
        return WhyExact.TOO_LONG
    if _count_blocks(spans, donors, len(token_ids), block_tokens) > device_blocks:
        return WhyExact.NO_ROOM
    # One whole block at least is not exact, so that its hash, and with it all later ones, can tell.
    exact_blocks = min(spans[0].lent_end // block_tokens, len(token_ids) // block_tokens - 1)
    if exact_blocks < 0:
        return WhyExact.SHORT
    copies, recomputed = _divide(spans, donors, ratio, exact_blocks * block_tokens)
    # vLLM always computes the last token of a prompt, because it needs the token's output.
    end = min(spans[-1].end, len(token_ids) - 1)
    copies = [copy.until(end) for copy in copies if copy.target < end]
    recomputed = [at for at in recomputed if at < end]
    return BorrowPlan(
        exact_blocks=exact_blocks,
        end=end,
        documents=tuple(spans),
        donors=tuple(donors),
        copies=tuple(copies),
        recomputed=tuple(recomputed),
        digest=_digest(donors, copies, recomputed),
    )


def _make_donor(
    system: Sequence[int],
    context: tuple[str, Sequence[int]] | None,
    token_ids: Sequence[int],
    span: DocumentSpan,
    block_tokens: int,
) -> Donor:
    """Make the prompt [system text, context, document], padded as Donor says."""
    name, before = context or (None, ())
    start = len(system) + len(before)
    content = [*system, *before, *token_ids[span.start : span.lent_end]]
    whole = ceil(len(content) / block_tokens) * block_tokens
    padded = content + content[-1:] * (whole + 1 - len(content))
    runs: list[SegmentEnd] = []
    if system:
        runs.append((len(system), None))
    if before:
        runs.append((start, name))
    # The padding of the last block is the document's, so that the block is the document's.
    runs.append((whole, span.document))
    return Donor(tuple(padded), tuple(runs), start)


def _count_blocks(
    spans: Sequence[DocumentSpan], donors: Iterable[Donor], prompt_tokens: int, block_tokens: int
) -> int:
    """Count the blocks that a prompt needs beside its donors, with one for the answer to go on."""
    system = spans[0].start // block_tokens  # all of them share these
    donated = sum(len(tokens) // block_tokens - system for tokens in {d.token_ids for d in donors})
    shared = spans[0].lent_end // block_tokens - system  # with the donor of the first document
    return donated + ceil((prompt_tokens + 1) / block_tokens) - shared + 1


def _divide(
    spans: Sequence[DocumentSpan], donors: Sequence[Donor], ratio: float, at: int
) -> tuple[list[TokenCopy], list[int]]:
    """Divide the tokens from `at`, where the exact blocks end, into those to copy and to recompute."""
    lent = spans[0].lent_end
    copies = [TokenCopy(0, at, at, lent - at)] if lent > at else []
    recomputed: list[int] = []
    at = max(at, lent)
    for place, (span, donor) in enumerate(zip(spans[1:], donors[1:], strict=True), 1):
        fresh = span.start + ceil(ratio * (span.end - span.start))
        recomputed += range(at, fresh)  # with the text between two documents
        if span.lent_end > fresh:
            source = donor.start + fresh - span.start
            copies.append(TokenCopy(place, source, fresh, span.lent_end - fresh))
        at = max(fresh, span.lent_end)
    recomputed += range(at, spans[-1].end)
    return copies, recomputed


def _digest(
    donors: Iterable[Donor], copies: Iterable[TokenCopy], recomputed: Iterable[int]
) -> bytes:
    """Digest what a plan does; the prompt's own tokens are in vLLM's hashes already."""
    content = sha256()
    for donor in donors:
        content.update(array.array("q", [len(donor.token_ids), *donor.token_ids]).tobytes())
    for copy in copies:
        content.update(array.array("q", copy).tobytes())
    content.update(array.array("q", recomputed).tobytes())
    return content.digest()
