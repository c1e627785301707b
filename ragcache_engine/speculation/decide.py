"""When to begin on documents that the search may still change its mind about. Pure decisions.

Source: RAGCache, §5.3, Algorithm 2 (dynamic speculative pipelining). Two things differ from its letter.
What was not started for want of room is tried again at the next stage, though its documents did not
change; the paper's loop would wait for a change. And the final documents are started on without regard
to others waiting: as in the paper, their request is about to join the same queue anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ragcache_engine.values import Document


class Decision(StrEnum):
    """What to do with the speculation of one question."""

    KEEP = "keep"  # leave things as they are
    START = "start"  # begin on the new documents, ending what runs on others
    CANCEL = "cancel"  # end what runs, and begin nothing


def decide(
    running: Sequence[Document] | None,
    found: Sequence[Document],
    *,
    pending_prefills: int,
    max_prefill_requests: int,
    final: bool = False,
) -> Decision:
    """Algorithm 2 for one stage of one search.

    running: the documents that this question's speculation runs on; None without one.
    found: the documents of this stage, nearest first.
    pending_prefills: requests without a first token yet, this question's speculation not counted: it
      ends if it is in the way.
    final: the search is over.
    """
    if running is not None and list(running) == list(found):
        return Decision.KEEP
    has_room = final or pending_prefills < max_prefill_requests
    if found and has_room:
        return Decision.START
    return Decision.KEEP if running is None else Decision.CANCEL


def max_prefill_requests(step_tokens: int, device_tokens: int, prompt_tokens: int) -> int:
    """How many prompts of that length one step computes: more would only wait for each other.

    The paper's max_prefill_bs: what fits into the device's memory or keeps it busy, the smaller of both.
    A step is never so short that nothing may be begun.
    """
    return max(1, min(step_tokens, device_tokens) // max(1, prompt_tokens))
