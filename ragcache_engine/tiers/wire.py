"""The messages between the engine's process and vLLM's scheduler, in vLLM's `kv_transfer_params`.

One message goes with each request, and one comes back at its end. Both are plain values that become
JSON under one name. Nothing else reads or writes that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ragcache_engine.tiers.counters import Counters

FIELD = "ragcache"
"""The name in `kv_transfer_params` under which both messages stand."""

SegmentEnd = tuple[int, str | None]
"""A run of prompt tokens: its end, and its document's id, None for other text."""


class MalformedRequest(ValueError):
    """The segments in a request's message are impossible."""


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """The message of a request to the scheduler.

    segments: runs of prompt tokens in order, without the text after the last document.
    forget: documents to drop; such a request does nothing else.
    operator_key: proves that the sender may forget documents. A server's clients do not have it.
    tombstones: the times of these documents' tombstones in the disk tier's folder, by mark.
    guess: the engine's own id of the request, if nobody has asked for its answer yet. vLLM gives the
      request another name; `adopted` of a later request refers to this id.
    is_provisional: whether the running search may still take the request back.
    adopted: ids of earlier guesses that somebody has asked for by now.
    """

    segments: Sequence[SegmentEnd] = ()
    forget: Sequence[str] = ()
    guess: str | None = None
    is_provisional: bool = False
    adopted: Sequence[str] = ()
    operator_key: str | None = None
    tombstones: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the message as `kv_transfer_params`; empty if the message is empty."""
        content: dict[str, Any] = {}
        if self.segments:
            content["segments"] = [[end, document] for end, document in self.segments]
        if self.forget:
            content["forget"] = list(self.forget)
            content["operator_key"] = self.operator_key
            content["tombstones"] = dict(self.tombstones)
        if self.guess is not None:
            content["guess"] = self.guess
        if self.is_provisional:
            content["provisional"] = True
        if self.adopted:
            content["adopted"] = list(self.adopted)
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
        guess, key = content.get("guess"), content.get("operator_key")
        return cls(
            segments=() if ignore_segments else _segments(content.get("segments", [])),
            forget=_names(content.get("forget")),
            guess=guess if isinstance(guess, str) else None,
            is_provisional=content.get("provisional") is True,
            adopted=_names(content.get("adopted")),
            operator_key=key if isinstance(key, str) else None,
            tombstones=_times(content.get("tombstones")),
        )


@dataclass(frozen=True, slots=True)
class FinishMessage:
    """The scheduler's message at the end of a request.

    tokens: cached prompt tokens by tier ("device", "host", "disk"); None if the request never ran.
    counters: the counts of all tiers, as of this request's end.
    """

    tokens: Mapping[str, int] | None
    counters: Counters

    def to_dict(self) -> dict[str, Any]:
        """Return the message as `kv_transfer_params`."""
        return {FIELD: {"tokens": self.tokens, "counters": self.counters.as_dict()}}

    @classmethod
    def from_dict(cls, params: Mapping[str, Any] | None) -> Self | None:
        """Read the message out of `kv_transfer_params`; None if there is none."""
        content = (params or {}).get(FIELD)
        if not content:
            return None
        return cls(content["tokens"], Counters.from_dict(content["counters"]))


def _segments(said: object) -> tuple[SegmentEnd, ...]:
    if not isinstance(said, list):
        raise MalformedRequest("segments are a list of [end token, document id or null]")
    segments: list[SegmentEnd] = []
    for segment in said:
        if not isinstance(segment, (list, tuple)) or len(segment) != 2:
            raise MalformedRequest(f"a segment is [end token, document id or null], not {segment}")
        end, document = segment
        if not isinstance(end, int) or (segments and end < segments[-1][0]) or end < 0:
            raise MalformedRequest("the ends of segments are rising token counts")
        if not isinstance(document, (str, type(None))):
            raise MalformedRequest(f"a document's id is a string or null, not {document!r}")
        segments.append((end, document))
    return tuple(segments)


def _names(said: object) -> tuple[str, ...]:
    if not isinstance(said, list):
        return ()
    return tuple(name for name in said if isinstance(name, str))


def _times(said: object) -> dict[str, int]:
    if not isinstance(said, Mapping):
        return {}
    return {mark: at for mark, at in said.items() if isinstance(mark, str) and isinstance(at, int)}
