"""The messages between the engine's process and vLLM's scheduler, in vLLM's `kv_transfer_params`.

One message goes with each request, and one comes back by its end. Both are plain values under one name.
Nothing else reads or writes that name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from ragcache_engine.checks import LONGEST_ID, shown
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import KEPT_TIERS, KeepOrder, Kept, KeptAnswer
from ragcache_engine.tiers.prompts import SegmentEnd
from ragcache_engine.tiers.provenance import PromptSources, ReuseReport
from ragcache_engine.tiers.tree_snapshot import MOST_DOCUMENTS, TreeSnapshot

FIELD = "ragcache"
"""The name in `kv_transfer_params` under which both messages stand."""

TRUSTED = b"the engine's own"
"""What marks a message that the engine itself wrote. A server's clients send JSON, which has no bytes, so
none of them can write it. A key would do the same, and stand in every log that tells of a request."""


class MalformedRequest(ValueError):
    """The segments in a request's message are impossible."""


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """The message of a request to the scheduler.

    segments: runs of prompt tokens in order, without the text after the last document.
    forget: documents to drop; such a request does nothing else.
    is_trusted: whether the engine itself wrote the message. Only then its sender may forget documents,
      bring contexts, and be told of all that is cached.
    tombstones: the times of these documents' tombstones in the disk tier's folder, by mark.
    snapshot: list this many documents of the knowledge tree; such a request does nothing else.
    with_bloom_filter: whether the snapshot also has a Bloom filter of all documents in fast memory.
    looked_up: prompts of which the sender asks whether they are cached whole; such a request does nothing
      else. keep: how to keep the documents of each from eviction; None: not at all.
    release: sets of documents to keep no longer, each with its tenant. lists_kept: whether to tell what
      is kept. Such a request does nothing else.
    guess: the engine's own id of the request, if nobody has asked for its answer yet. vLLM gives the
      request another name; `adopted` of a later request refers to this id.
    is_provisional: whether the running search may still take the request back.
    adopted: ids of earlier guesses that somebody has asked for by now.
    is_exact: whether the prompt must borrow nothing.
    recompute_ratio: the share of borrowed documents to compute anew; None: the engine's own.
    starts: for each document in the segments, the token at which its own text begins.
    contexts: by document, what its donor stores around it.
    makes_donors: whether the request computes the donors that it lacks whatever they cost.
    withdrawn: documents that were forgotten since the request was planned; what is computed with them is
      not kept.
    """

    segments: Sequence[SegmentEnd] = ()
    forget: Sequence[str] = ()
    guess: str | None = None
    is_provisional: bool = False
    adopted: Sequence[str] = ()
    is_trusted: bool = False
    tombstones: Mapping[str, int] = field(default_factory=dict)
    is_exact: bool = False
    recompute_ratio: float | None = None
    starts: Sequence[int] = ()
    contexts: Mapping[str, Context] = field(default_factory=dict)
    makes_donors: bool = False
    withdrawn: Sequence[str] = ()
    snapshot: int = 0
    with_bloom_filter: bool = False
    looked_up: Sequence[LookedUp] = ()
    keep: KeepOrder | None = None
    release: Sequence[DocumentSet] = ()
    lists_kept: bool = False

    @property
    def documents(self) -> tuple[str, ...]:
        """The ids of the documents in the segments, each once."""
        return tuple(dict.fromkeys(name for _, name in self.segments if name is not None))

    @property
    def is_upkeep(self) -> bool:
        """Whether the request does nothing else than to forget, to keep, to observe or to look up."""
        return bool(
            self.forget or self.snapshot or self.looked_up or self.release or self.lists_kept
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the message as `kv_transfer_params`; empty if the message is empty."""
        content: dict[str, Any] = {}
        if self.segments:
            content["segments"] = [[end, document] for end, document in self.segments]
        if self.forget:
            content["forget"] = list(self.forget)
            content["tombstones"] = dict(self.tombstones)
        if self.guess is not None:
            content["guess"] = self.guess
        if self.is_provisional:
            content["provisional"] = True
        if self.adopted:
            content["adopted"] = list(self.adopted)
        if self.is_exact:
            content["exact"] = True
        if self.recompute_ratio is not None:
            content["recompute_ratio"] = self.recompute_ratio
        if self.starts:
            content["starts"] = list(self.starts)
        if self.contexts:
            content["contexts"] = {
                document: [one.document, list(one.token_ids), one.last_token]
                for document, one in self.contexts.items()
            }
        if self.makes_donors:
            content["makes_donors"] = True
        if self.withdrawn:
            content["withdrawn"] = list(self.withdrawn)
        if self.snapshot:
            content["snapshot"] = self.snapshot
            if self.with_bloom_filter:
                content["bloom_filter"] = True
        if self.looked_up:
            content["looked_up"] = [
                [list(one.token_ids), one.tenant, one.message.to_dict().get(FIELD, {})]
                for one in self.looked_up
            ]
        if self.keep is not None:
            content["keep"] = self.keep.to_list()
        if self.release:
            content["release"] = [[list(names), tenant] for names, tenant in self.release]
        if self.lists_kept:
            content["lists_kept"] = True
        if self.is_trusted:
            content["trusted"] = TRUSTED
        return {FIELD: content} if content else {}

    @classmethod
    def from_dict(cls, params: Mapping[str, Any] | None, *, ignore_segments: bool = False) -> Self:
        """Read the message from `kv_transfer_params`. Missing parts are empty.

        ignore_segments: for a request whose segments were found to be malformed.
        Raises MalformedRequest if the segments are not a list of [end token, document id or null].
        """
        content = (params or {}).get(FIELD)
        if not isinstance(content, Mapping):
            return cls()
        guess, mark = content.get("guess"), content.get("trusted")
        return cls(
            segments=() if ignore_segments else _segments(content.get("segments", [])),
            forget=_names(content.get("forget")),
            guess=guess if isinstance(guess, str) else None,
            is_provisional=content.get("provisional") is True,
            adopted=_names(content.get("adopted")),
            is_trusted=isinstance(mark, bytes) and mark == TRUSTED,
            tombstones=_times(content.get("tombstones")),
            is_exact=content.get("exact") is True,
            recompute_ratio=_ratio(content.get("recompute_ratio")),
            starts=_starts(content.get("starts")),
            contexts=_contexts(content.get("contexts")),
            makes_donors=content.get("makes_donors") is True,
            withdrawn=_names(content.get("withdrawn")),
            snapshot=_count(content.get("snapshot")),
            with_bloom_filter=content.get("bloom_filter") is True,
            looked_up=_looked_up(content.get("looked_up")),
            keep=_keep_order(content.get("keep")),
            release=_document_sets(content.get("release")),
            lists_kept=content.get("lists_kept") is True,
        )


DocumentSet = tuple[tuple[str, ...], str | None]
"""Ids of documents that are kept together, and their tenant."""


class LookedUp(NamedTuple):
    """A prompt that is looked up in the tiers: its tokens, its tenant, and the message it would carry."""

    token_ids: Sequence[int]
    tenant: str | None
    message: RequestMessage


@dataclass(frozen=True, slots=True)
class FinishMessage:
    """The scheduler's message at the end of a request, or with each token where a stop string may end it.

    tokens: cached prompt tokens by tier ("device", "host", "disk"); None if the request never ran.
    counters: the counts of all tiers, as of this request's end, or of its first token.
    reuse: what the prompt borrowed; None if it borrowed nothing. why_exact: why it borrowed nothing, if
      the engine borrows at all.
    sources: where the prompt came from, for a sender who is trusted.
    tree: the snapshot that such a sender asked for. held: for each prompt that such a sender looked up,
      whether it is cached whole. keeping: the answer to one who asked to keep, or what is kept.
    """

    tokens: Mapping[str, int] | None
    counters: Counters
    reuse: ReuseReport | None = None
    why_exact: str | None = None
    sources: PromptSources | None = None
    tree: TreeSnapshot | None = None
    held: Sequence[bool] = ()
    keeping: KeptAnswer | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the message as `kv_transfer_params`."""
        content: dict[str, Any] = {"tokens": self.tokens, "counters": self.counters.as_dict()}
        if self.reuse is not None:
            content["reuse"] = self.reuse.to_dict()
        if self.why_exact is not None:
            content["why_exact"] = self.why_exact
        if self.sources:
            content["sources"] = self.sources.to_dict()
        if self.tree:
            content["tree"] = self.tree.to_dict()
        if self.held:
            content["held"] = list(self.held)
        if self.keeping is not None:
            kept, *rest = self.keeping
            content["keeping"] = [[list(one) for one in kept], *rest]
        return {FIELD: content}

    @classmethod
    def from_dict(cls, params: Mapping[str, Any] | None) -> Self | None:
        """Read the message out of `kv_transfer_params`; None if there is none."""
        content = (params or {}).get(FIELD)
        if not content:
            return None
        reuse, sources, tree = (content.get(part) for part in ("reuse", "sources", "tree"))
        return cls(
            content["tokens"],
            Counters.from_dict(content["counters"]),
            ReuseReport.from_dict(reuse) if reuse else None,
            content.get("why_exact"),
            PromptSources.from_dict(sources) if sources else None,
            TreeSnapshot.from_dict(tree) if tree else None,
            tuple(content.get("held", ())),
            _kept_answer(content["keeping"]) if "keeping" in content else None,
        )


def _segments(said: object) -> tuple[SegmentEnd, ...]:
    if not isinstance(said, list):
        raise MalformedRequest("segments are a list of [end token, document id or null]")
    segments: list[SegmentEnd] = []
    for segment in said:
        if not isinstance(segment, (list, tuple)) or len(segment) != 2:
            raise MalformedRequest(
                f"a segment is [end token, document id or null], not {shown(segment)}"
            )
        end, document = segment
        if type(end) is not int or end <= (segments[-1][0] if segments else -1):
            raise MalformedRequest(
                f"the ends of segments are token counts, each above the one before, not {shown(end)}"
            )
        if not isinstance(document, (str, type(None))) or len(document or "") > LONGEST_ID:
            raise MalformedRequest(
                f"a document's id is null or a string of {LONGEST_ID} characters at most, not "
                f"{shown(document)}"
            )
        segments.append((end, document))
    return tuple(segments)


def _names(said: object) -> tuple[str, ...]:
    if not isinstance(said, list):
        return ()
    return tuple(name for name in said if isinstance(name, str))


def _count(said: object) -> int:
    return min(said, MOST_DOCUMENTS) if type(said) is int and said > 0 else 0


def _ratio(said: object) -> float | None:
    return float(said) if isinstance(said, (int, float)) and 0 <= said <= 1 else None


def _starts(said: object) -> tuple[int, ...]:
    is_list = isinstance(said, (list, tuple)) and all(isinstance(start, int) for start in said)
    return tuple(said) if is_list else ()  # type: ignore[arg-type]


def _contexts(said: object) -> dict[str, Context]:
    if not isinstance(said, Mapping):
        return {}
    contexts: dict[str, Context] = {}
    for document, context in said.items():
        is_whole = isinstance(context, (list, tuple)) and len(context) == 3
        name, tokens, last = context if is_whole else (0, 0, 0)
        if (
            isinstance(document, str)
            and isinstance(name, str)
            and isinstance(tokens, (list, tuple))
            and all(isinstance(token, int) for token in tokens)
            and isinstance(last, (int, type(None)))
        ):
            contexts[document] = Context(name, tuple(tokens), last)
    return contexts


def _looked_up(said: object) -> tuple[LookedUp, ...]:
    """Read the prompts that are looked up; none if one is malformed, so that answers never shift."""
    looked_up: list[LookedUp] = []
    for one in said if isinstance(said, list) else ():
        if not isinstance(one, (list, tuple)) or len(one) != 3:
            return ()
        tokens, tenant, content = one
        is_text = isinstance(tenant, (str, type(None)))
        is_prompt = isinstance(tokens, (list, tuple)) and all(type(each) is int for each in tokens)
        if not (is_text and is_prompt and isinstance(content, Mapping)):
            return ()
        # No prompt in it looks up others, however deep a sender nests them.
        content = {name: value for name, value in content.items() if name != "looked_up"}
        try:
            message = RequestMessage.from_dict({FIELD: content})
        except MalformedRequest:
            return ()
        looked_up.append(LookedUp(tuple(tokens), tenant, message))
    return tuple(looked_up)


def _kept_answer(said: Sequence[Any]) -> KeptAnswer:
    kept, no_room, has_failed = said
    told = tuple(Kept(tuple(names), *rest) for names, *rest in kept)
    return KeptAnswer(told, tuple(no_room) if no_room else None, has_failed)


def _keep_order(said: object) -> KeepOrder | None:
    """Read an order; None if it is malformed, or for a tier in which nothing can be kept."""
    with contextlib.suppress(ValueError, TypeError):
        if isinstance(said, (list, tuple)):
            order = KeepOrder.from_list(said)
            numbers = (order.most, order.share, order.until_s or 0.0)
            are_numbers = all(isinstance(one, (int, float)) for one in numbers)
            are_texts = isinstance(order.owner, str | None) and isinstance(order.name, str)
            if order.tier in KEPT_TIERS and are_numbers and are_texts:
                return order
    return None


def _document_sets(said: object) -> tuple[DocumentSet, ...]:
    return tuple(
        (_names(one[0]), one[1])
        for one in (said if isinstance(said, list) else ())
        if isinstance(one, (list, tuple))
        and len(one) == 2
        and isinstance(one[1], (str, type(None)))
    )


def _times(said: object) -> dict[str, int]:
    if not isinstance(said, Mapping):
        return {}
    return {mark: at for mark, at in said.items() if isinstance(mark, str) and isinstance(at, int)}
