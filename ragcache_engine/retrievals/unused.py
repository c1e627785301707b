"""Notices that no document of any search ever comes in a prompt, as when the LLM has another engine.

An engine cannot see the other one. It only sees that it is told of searches and that no prompt follows.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

SEARCHES = 32
"""So many searches without a prompt are no trial of a retriever alone any more."""
PATIENCE_S = 60.0
"""A batch makes all its searches before its first prompt, so numbers alone say nothing."""


class UnusedRetrievals:
    """Logs one warning if many searches, over a minute, led to no prompt. Any thread may call it."""

    def __init__(self) -> None:
        self._searches = 0
        self._first_s: float | None = None
        self._is_settled = False

    def note_search(self, now_s: float) -> None:
        """Count a search that found documents. now_s: on any clock, always the same one."""
        if self._is_settled:
            return
        self._searches += 1
        if self._first_s is None:
            self._first_s = now_s
        waited_s = now_s - self._first_s
        if self._searches >= SEARCHES and waited_s >= PATIENCE_S:
            self._is_settled = True
            logger.warning(
                "In %d searches this engine was told of documents, and none of them has come in a prompt "
                "to it. Give the LLM the same engine as the retriever, so that their tensors are reused. "
                "If it has the same, leave the documents' texts in the prompt as they were found.",
                self._searches,
            )

    def note_use(self) -> None:
        """Note that a retrieved document stood in a prompt: all is well from now on."""
        self._is_settled = True
