"""Join a request with the work that was done for it before it came."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Self

from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.prefill_load import PrefillLoad
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import CachedTokens, SpeculationReport, SpeculationStep


class Claim:
    """What a request has claimed. Use this as a context manager; its end ends the adopted speculation.

    begun: the deltas of the adopted speculation; None if the request adopts none.
    """

    def __init__(
        self,
        now: Callable[[], float],
        load: PrefillLoad,
        request: BackendRequest,
        search: TrackedSearch | None,
        speculation: Speculation | None,
    ) -> None:
        self._now = now
        self._load = load
        self._search = search
        self._speculation = speculation
        self._claimed_s = now()
        self._was_alone = speculation is None and load.begin(self)
        load.note_prompt(request.expected_tokens)
        self.begun: AsyncGenerator[Delta, None] | None = (
            speculation.deltas() if speculation else None
        )

    def first_token(self, cached: CachedTokens, prompt_tokens: int) -> None:
        """Note that the request has its first token. cached: prompt tokens that were not computed.

        prompt_tokens: how many tokens the prompt has.
        """
        now_s, speculation = self._now(), self._speculation
        self._load.end(self)
        if self._was_alone:
            self._load.note_speed(now_s - self._claimed_s, prompt_tokens - cached.total)
        if self._search:
            at_s = speculation.first_token_s if speculation else None
            self._search.note(now_s if at_s is None else at_s, SpeculationStep.FIRST_TOKEN)

    def attempt_failed(self) -> None:
        """Note that the request begins anew: what it takes from now on is no prefill's time."""
        self._was_alone = False

    def report(self) -> SpeculationReport:
        """Return what was done before the request came; an empty report without a search."""
        return self._search.report() if self._search else SpeculationReport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._load.end(self)
        if self._speculation:
            self._speculation.cancel()
