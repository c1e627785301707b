"""Plans what a prompt borrows: which tokens are exact, copied and recomputed. Pure functions.

A prompt is [system text, document 1, document 2, ..., question]. The system text and the first document
stand where they always stand, so they are exact. Each later document is borrowed from a *donor*: the
prompt [system text, context, document], whose tensors of the document are copied and turned to the new
position. The context is empty, or a neighbour of the document in the corpus. So a donor depends on the
document, the system text and the corpus, and not on what others asked before. With donors="any" that is
given up: more documents may be exact, and a donor may be what a served prompt left (see served.py).
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from math import ceil
from typing import NamedTuple

from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.donor import LEAD_TOKENS, Donor, Packing, pack
from ragcache_engine.tiers.prompts import SegmentEnd

MOST_DONOR_TOKENS = 1 << 20
"""Of one prompt's donors together. The scheduler copies and hashes each with the text before it, some
0.2 s for so many, and everybody waits meanwhile."""


class WhyExact(StrEnum):
    """Why a prompt borrows nothing."""

    ASKED = "the request asked for an exact answer"
    FEW_DOCUMENTS = "the prompt has fewer than two documents"
    NOTHING_SERVED = "every document is exact here, or was in no prompt before"
    SHORT = "the documents after the first are so short that borrowing gains nothing"
    TOO_LONG = "a document and its context are longer than the model's context"
    NO_ROOM = "device memory does not hold the prompt, its answer and its donors at once"
    MANY = "so many documents stand behind so long a text that planning would hold up others"
    NOT_PREPARED = "its donors are computed later, in idle time: answering exactly was quicker"
    CACHED = "its exact tensors are cached: answering exactly was quicker"
    OTHER_INPUT = "token ids alone do not determine the tensors"
    DRIFTED = "switched off: answers drifted"
    PLAIN_SERVER = "a plain vLLM server borrows nothing"
    PROMPT_LOGPROBS = "prompt_logprobs need every token to be computed"


TRANSIENT_REASONS = frozenset(
    {WhyExact.NOTHING_SERVED, WhyExact.NOT_PREPARED, WhyExact.CACHED, WhyExact.DRIFTED}
)
"""Reasons that may not have held a moment before; the others follow from the prompt."""


class DocumentSpan(NamedTuple):
    """A document's tokens [start, end) in a prompt."""

    document: str
    start: int
    end: int

    @property
    def known_end(self) -> int:
        """Where the tokens end that the document has in every prompt.

        The last token may be another one where something else follows, as in ".\\n\\n".
        """
        return max(self.start + 1, self.end - 1)


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
      the system text and the exact documents.
    end: where the last document ends, or before that, where what its donor lends of it ends. The tokens
      from here on are computed as ever.
    system_tokens: how many tokens stand before the first document.
    documents: the documents, in the prompt's order.
    exact_documents: how many of them, from the first on, are exact.
    donors: one for all exact documents, and one for each later document that is borrowed, in their order.
      The first donor lends nothing but the end of the last exact document, in its own place: what lies in
      a block that the prompt shares with nobody.
    lent: for each donor, the place of the document that it lends among all documents. The others behind
      the exact ones are computed where they stand.
    copies: what to copy. recomputed: positions to compute anew in this prompt, rising. Together they are
      all positions from the end of the exact blocks to `end`.
    digest: tells this plan from all others for the same tokens.
    """

    exact_blocks: int
    end: int
    system_tokens: int
    documents: tuple[DocumentSpan, ...]
    exact_documents: int
    donors: tuple[Donor, ...]
    lent: tuple[int, ...]
    copies: tuple[TokenCopy, ...]
    recomputed: tuple[int, ...]
    digest: bytes

    def lent_document(self, donor: int) -> DocumentSpan:
        """Return the document that a donor lends. donor: its place in the plan."""
        return self.documents[self.lent[donor]]

    @property
    def computed_in_place(self) -> tuple[str, ...]:
        """The documents behind the exact ones that are borrowed from nowhere."""
        places = range(self.exact_documents, len(self.documents))
        return tuple(self.documents[at].document for at in places if at not in self.lent)

    def count_copied(self, start: int, end: int) -> int:
        """Count the copied tokens among those at the positions [start, end)."""
        return sum(
            max(0, min(end, copy.target + copy.tokens) - max(start, copy.target))
            for copy in self.copies
        )

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


def count_system_tokens(segments: Sequence[SegmentEnd]) -> int:
    """Count the tokens before a prompt's first document.

    A token that ends in the document is none of them, as in "Context: {context}", where " The" is one
    token: the system text is the same whatever document comes first.
    """
    at = 0
    for end, document in segments:
        if document is not None and end > at:
            break
        at = max(at, end)
    return at


@dataclass(frozen=True, slots=True)
class Room:
    """How long a prompt may be with its answer; how many blocks of how many tokens the device has."""

    block_tokens: int
    context_tokens: int
    device_blocks: int


@dataclass(frozen=True, slots=True)
class Lenders:
    """Which documents of a prompt are exact, and what served prompts left for the others.

    exact_documents: how many, from the first on. served: donors that take the place of those made from
    contexts, by the place of their document among all documents of the prompt.
    computed: the places of documents that have no donor and are computed where they stand.
    """

    exact_documents: int = 1
    served: Mapping[int, Donor] = field(default_factory=dict)
    computed: AbstractSet[int] = frozenset()


MADE_DONORS = Lenders()
"""The first document is exact; each other one has a donor of its own."""


def plan_borrowing(
    token_ids: Sequence[int],
    segments: Sequence[SegmentEnd],
    room: Room,
    *,
    contexts: Mapping[str, Context],
    ratio: float,
    starts: Sequence[int] = (),
    lenders: Lenders = MADE_DONORS,
    least_tokens: int = 0,
    answer_tokens: int | None = 1,
    packing: Packing | None = None,
) -> BorrowPlan | WhyExact:
    """Plan what a prompt borrows, or say why it borrows nothing. A function of its arguments alone.

    segments: as a RequestMessage carries them. contexts: for each document its context; a document
      without one is stored alone behind the system text.
    ratio: how many of a borrowed document's tokens to compute anew, 0 to 1; its first ones, together with
      the text before it. With 0 that text is copied, too, if the donor has the same before its document:
      then no pass of the model comes before the step, which would take as long as a short step.
    least_tokens: the fewest tokens of documents behind the first for which borrowing can pay.
    starts: for each document where its own text begins, behind what stands between it and the one before;
      without them, at the end of the run before.
    answer_tokens: the most tokens of the answer; None: all that the context has room for. A request that
      loses its memory in the middle of its answer needs its donors again, beside what it has computed.
    packing: how donors are packed, but for the first and those of served prompts; None packs none.
    """
    block_tokens, context_tokens = room.block_tokens, room.context_tokens
    exact_documents = lenders.exact_documents
    spans = find_spans(segments, len(token_ids), starts)
    if len(spans) < 2:
        return WhyExact.FEW_DOCUMENTS
    if len(spans) <= exact_documents:
        return WhyExact.NOTHING_SERVED
    borrowed = [at for at in range(exact_documents, len(spans)) if at not in lenders.computed]
    if sum(spans[at].end - spans[at].start for at in borrowed) < least_tokens:
        return WhyExact.SHORT
    system = token_ids[: count_system_tokens(segments)]
    exact = spans[:exact_documents]
    needed = [contexts.get(spans[at].document) for at in borrowed if at not in lenders.served]
    in_contexts = sum(len(context.token_ids) for context in needed if context)
    if len(needed) * len(system) + in_contexts > MOST_DONOR_TOKENS:
        return WhyExact.MANY
    donors = [_make_first_donor(system, contexts, token_ids, exact, block_tokens)]
    for place in borrowed:
        donor = lenders.served.get(place)
        context = contexts.get(spans[place].document)
        donors.append(donor or _make_donor(system, context, token_ids, spans[place], block_tokens))
    if max(len(donor.token_ids) for donor in donors) >= context_tokens:  # each gives a token, too
        return WhyExact.TOO_LONG
    last = exact[-1]
    exact_end = last.start + _count_lent(donors[0], token_ids[last.start : last.end])
    shared = exact_end // block_tokens - len(system) // block_tokens  # with the first donor
    longest = context_tokens if answer_tokens is None else len(token_ids) + answer_tokens
    longest = max(len(token_ids) + 1, min(longest, context_tokens))
    lending = [donors[0]]
    for place, donor in zip(borrowed, donors[1:], strict=True):
        lending.append(pack(donor, packing) if packing and place not in lenders.served else donor)
    if _count_blocks(system, lending, longest, block_tokens) - shared > room.device_blocks:
        return WhyExact.NO_ROOM
    if _count_making_blocks(lending, block_tokens) > room.device_blocks:
        return WhyExact.NO_ROOM
    # One whole block at least is not exact, so that its hash, and with it all later ones, can tell.
    exact_blocks = min(exact_end // block_tokens, len(token_ids) // block_tokens - 1)
    if exact_blocks < 0:
        return WhyExact.SHORT
    lent = (exact_documents - 1, *borrowed)
    copies, recomputed, end = _divide(
        token_ids,
        spans,
        donors,
        lent,
        ratio,
        exact_blocks * block_tokens,
        exact_end,
        most_before=LEAD_TOKENS if packing else context_tokens,
    )
    copies = [copy._replace(source=copy.source - lending[copy.donor].first) for copy in copies]
    # vLLM always computes the last token of a prompt, because it needs the token's output.
    end = min(end, len(token_ids) - 1)
    copies = [copy.until(end) for copy in copies if copy.target < end]
    recomputed = [at for at in recomputed if at < end]
    return BorrowPlan(
        exact_blocks=exact_blocks,
        end=end,
        system_tokens=len(system),
        documents=tuple(spans),
        exact_documents=exact_documents,
        donors=tuple(lending),
        lent=lent,
        copies=tuple(copies),
        recomputed=tuple(recomputed),
        digest=_digest(lending, copies, recomputed),
    )


def plan_making(packed: Donor) -> BorrowPlan:
    """Plan how a packed donor is made: from one donor, and nothing is computed."""
    assert packed.packs is not None
    _, document = packed.segments[-1]
    span = DocumentSpan(document or "", packed.packs.start, len(packed.packs.token_ids) - 1)
    return BorrowPlan(
        exact_blocks=0,
        end=len(packed.token_ids) - 1,
        system_tokens=0,
        documents=(span,),
        exact_documents=0,
        donors=(packed.packs,),
        lent=(0,),
        copies=(),
        recomputed=(),
        digest=b"",
    )


def _make_first_donor(
    system: Sequence[int],
    contexts: Mapping[str, Context],
    token_ids: Sequence[int],
    spans: Sequence[DocumentSpan],
    block_tokens: int,
) -> Donor:
    """Make the prompt that ends with the last exact document, padded as Donor says."""
    *before, last = spans
    runs: list[SegmentEnd] = [(len(system), None)] if system else []
    runs += [(span.end, span.document) for span in before]
    content = [*token_ids[: last.start], *_stored(token_ids, last, contexts.get(last.document))]
    return _pad(content, runs, last, last.start, block_tokens)


def _make_donor(
    system: Sequence[int],
    context: Context | None,
    token_ids: Sequence[int],
    span: DocumentSpan,
    block_tokens: int,
) -> Donor:
    """Make the prompt [system text, context, document], padded as Donor says."""
    name, before = (context.document, context.token_ids) if context else (None, ())
    start = len(system) + len(before)
    runs: list[SegmentEnd] = []
    if system:
        runs.append((len(system), None))
    if before:
        runs.append((start, name))
    content = [*system, *before, *_stored(token_ids, span, context)]
    return _pad(content, runs, span, start, block_tokens)


def _stored(token_ids: Sequence[int], span: DocumentSpan, context: Context | None) -> list[int]:
    """Return a document's tokens as its donor stores them."""
    tokens = list(token_ids[span.start : span.known_end])
    if context and context.last_token is not None and span.known_end < span.end:
        tokens.append(context.last_token)
    return tokens


def _pad(
    content: list[int], runs: list[SegmentEnd], span: DocumentSpan, start: int, block_tokens: int
) -> Donor:
    """Fill the last block of a donor that ends with this document, which begins at `start` in it."""
    whole = ceil(len(content) / block_tokens) * block_tokens
    padded = content + content[-1:] * (whole + 1 - len(content))
    # The padding of the last block is the document's, so that the block is the document's.
    return Donor(tuple(padded), (*runs, (whole, span.document)), start)


def _count_blocks(
    system: Sequence[int], donors: Iterable[Donor], tokens: int, block_tokens: int
) -> int:
    """Count the blocks of a prompt with its answer (`tokens`) and of its donors, and a spare one."""
    shared = len(system) // block_tokens  # by all of them that are not packed
    donated = {
        donor.token_ids: len(donor.token_ids) // block_tokens - (0 if donor.packs else shared)
        for donor in donors
    }
    return sum(donated.values()) + ceil(tokens / block_tokens) + 1


def _count_making_blocks(donors: Iterable[Donor], block_tokens: int) -> int:
    """Count the blocks of all donors and, beside them, of the largest one that a packed one is made from.

    With a spare one for each of the two requests that make it.
    """
    made_from = [len(donor.packs.token_ids) // block_tokens for donor in donors if donor.packs]
    held = {donor.token_ids: len(donor.token_ids) // block_tokens for donor in donors}
    return sum(held.values()) + max(made_from) + 2 if made_from else 0


def _divide(
    token_ids: Sequence[int],
    spans: Sequence[DocumentSpan],
    donors: Sequence[Donor],
    lent: Sequence[int],
    ratio: float,
    at: int,
    exact_end: int,
    most_before: int,
) -> tuple[list[TokenCopy], list[int], int]:
    """Divide the tokens from `at`, where the exact blocks end, into those to copy and to recompute.

    lent: as in BorrowPlan. exact_end: where what the first donor lends ends. most_before: how many tokens
    before its document another donor can lend. Returns where the divided tokens end as well: no donor
    lends anything behind that. A document that is computed in its place is recomputed with what stands
    before the next borrowed one.
    """
    copies = [TokenCopy(0, at, at, exact_end - at)] if exact_end > at else []
    recomputed: list[int] = []
    at = max(at, exact_end)
    for number, (place, donor) in enumerate(zip(lent[1:], donors[1:], strict=True), 1):
        span = spans[place]
        fresh = span.start + ceil(ratio * (span.end - span.start))
        is_between = at >= spans[place - 1].end
        is_near = is_between and fresh - at <= most_before
        if is_near and fresh == span.start and _has_before(donor, token_ids[at:fresh]):
            fresh = at
        recomputed += range(at, fresh)  # with the text between two documents
        lent_end = span.start + _count_lent(donor, token_ids[span.start : span.end])
        if lent_end > fresh:
            source = donor.start + fresh - span.start
            copies.append(TokenCopy(number, source, fresh, lent_end - fresh))
        at = max(fresh, lent_end)
    return copies, recomputed, at


def _count_lent(donor: Donor, document: Sequence[int]) -> int:
    """Count the leading tokens of its document that a donor lends.

    It may have the last one in another form. One that a short prompt left may lack more of the end.
    """
    lent = donor.token_ids[donor.start : -1][: len(document)]
    is_whole = len(lent) == len(document) and lent[-1] == document[-1]
    return len(lent) if is_whole else min(len(lent), len(document) - 1)


def _has_before(donor: Donor, text: Sequence[int]) -> bool:
    """Return whether this text stands before the donor's document."""
    start = donor.start - len(text)
    return start >= 0 and donor.token_ids[start : donor.start] == tuple(text)


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
