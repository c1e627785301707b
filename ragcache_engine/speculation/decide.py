"""Decide when to start on documents that the search may still replace. Pure functions.

Source: RAGCache, §5.3, Algorithm 2 (dynamic speculative pipelining). This differs from the paper's
algorithm in three points. A start that found no room is tried again at the next stage, even if the
documents are the same; the paper's loop would wait for other documents. Without room, a start on
documents to which the stage only adds some goes on. And the final documents need no room: as in the
paper, their request is about to join the same queue anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import takewhile

from ragcache_engine.values import Document


def count_same(before: Sequence[Document], after: Sequence[Document]) -> int:
    """Count the leading documents that two stages of a search have in common."""
    pairs = zip(before, after, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def share_replaced(before: Sequence[Document], after: Sequence[Document]) -> float:
    """Return the share of a stage's documents that the next one does not begin with; 0 of none."""
    return 1.0 - count_same(before, after) / len(before) if before else 0.0


class Decision(StrEnum):
    """What to do with the speculation of one question."""

    KEEP = "keep"  # let the running speculation run; if there is none, start none
    START = "start"  # start on the new documents, and cancel the speculation on other documents
    CANCEL = "cancel"  # cancel the running speculation, and start none


def decide(
    running: Sequence[Document] | None,
    found: Sequence[Document],
    *,
    pending_prefills: int,
    max_prefill_requests: int,
    final: bool = False,
) -> Decision:
    """Apply Algorithm 2 to one stage of one search.

    running: the documents of this question's speculation; None if there is none.
    found: the documents of this stage, nearest first.
    pending_prefills: how many other requests have no first token yet. This question's own speculation
      does not count: the engine cancels it if it is in the way.
    final: whether the search is over.
    """
    if running is not None and list(running) == list(found):
        return Decision.KEEP
    has_room = final or pending_prefills < max_prefill_requests
    if found and has_room:
        return Decision.START
    if running is None or (running and not share_replaced(running, found)):
        return Decision.KEEP  # what it prefills is the prompt's beginning
    return Decision.CANCEL


def max_prefill_requests(step_tokens: int, device_tokens: int, prompt_tokens: int) -> int:
    """Return how many prompts of this length one step computes; more prompts would delay each other.

    This is the paper's max_prefill_bs: the number of prompts that fit into the device's memory, or the
    number that keeps it busy, whichever is smaller. At least one prompt may always start.
    """
    return max(1, min(step_tokens, device_tokens) // max(1, prompt_tokens))
