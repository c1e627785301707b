"""Keep the searches and speculations that a prompt may still claim, within limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

from ragcache_engine.latest_items import LatestItems
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.values import TokenizedPrompt

SOON_S = 0.5
"""For how many seconds before the end of a search, at least, and after it its prompt is expected."""
MOST_SEARCHES, MOST_SEARCH_BYTES = 256, 128 << 20
"""How many searches may wait for their prompt, and how much memory their documents may take."""

Unclaimed = tuple[Speculation, TrackedSearch]


def _documents_bytes(number: int, search: TrackedSearch) -> int:
    documents = {*(search.documents or ()), *search.candidates}
    return sum(document.size_bytes for document in documents)


class SearchRegistry:
    """Remember which search has which number, and which speculation belongs to which search.

    Used on the engine's loop only, except for `find_tokens`.
    most_unclaimed: how many speculations may wait for their prompt at a time.
    """

    def __init__(self, most_unclaimed: int) -> None:
        self._most_unclaimed = most_unclaimed
        self._searches: LatestItems[int, TrackedSearch] = LatestItems(
            MOST_SEARCH_BYTES, _documents_bytes, most=MOST_SEARCHES
        )
        self._unclaimed: dict[Speculation, TrackedSearch] = {}

    def add_search(self, search: TrackedSearch) -> None:
        """Remember a search by its number, with the documents of its last stage.

        Forget the oldest searches for which there is no room.
        """
        self._searches[search.number] = search

    def remove_search(self, number: int) -> TrackedSearch | None:
        """Forget the search with this number and return it; None if it is not known."""
        return self._searches.pop(number, None)

    def add(self, speculation: Speculation, search: TrackedSearch) -> None:
        """Make this the search's speculation, which waits for a prompt from now on."""
        search.speculation = speculation
        self._unclaimed[speculation] = search

    def remove(self, speculation: Speculation, search: TrackedSearch) -> None:
        """Take the speculation from its search: no prompt can claim it any more."""
        self._unclaimed.pop(speculation, None)
        if search.speculation is speculation:
            search.speculation = None

    def __contains__(self, speculation: Speculation) -> bool:
        return speculation in self._unclaimed

    @property
    def unclaimed(self) -> int:
        """How many speculations wait for their prompt."""
        return len(self._unclaimed)

    @property
    def is_full(self) -> bool:
        """Whether no further speculation may wait for its prompt."""
        return len(self._unclaimed) >= self._most_unclaimed

    def claim(
        self, request: BackendRequest, number: int | None
    ) -> tuple[TrackedSearch | None, Speculation | None]:
        """Take out the search behind this request, and the speculation that generates its answer.

        number: the search that the prompt was made from; None if that is not known. The speculation may
          also belong to another search that expected the same prompt. Without a number, the search of
          that speculation is returned.
        """
        search = None if number is None else self.remove_search(number)
        speculation = self._find_answer(request, search)
        if speculation:
            own = self._unclaimed[speculation]
            self.remove(speculation, own)
            search = search or self.remove_search(own.number)
        return search, speculation

    def _find_answer(
        self, request: BackendRequest, search: TrackedSearch | None
    ) -> Speculation | None:
        own = search.speculation if search else None
        if own and own.is_answer_to(request):
            return own
        return next((s for s in self._unclaimed if s.is_answer_to(request)), None)

    def find_tokens(self, prompt: str, add_special_tokens: bool) -> TokenizedPrompt | None:
        """Return the prompt's tokens if a waiting speculation has them, else None. Any thread."""
        for speculation in self._unclaimed.copy():
            request = speculation.request
            if (
                request
                and isinstance(request.prompt, TokenizedPrompt)
                and request.prompt.text == prompt
                and request.options.add_special_tokens == add_special_tokens
            ):
                return request.prompt
        return None

    def find_overdue(self, now_s: float, unclaimed_s: float) -> list[Unclaimed]:
        """Return the speculations whose search ended `unclaimed_s` ago or earlier."""
        return [
            (speculation, search)
            for speculation, search in self._unclaimed.items()
            if search.ended_s is not None and now_s - search.ended_s >= unclaimed_s
        ]

    def find_about(self, document_ids: Collection[str] | None) -> list[Unclaimed]:
        """Return the waiting speculations on any of these documents, or for such a tenant.

        None: all that wait.
        """
        if document_ids is None:
            return list(self._unclaimed.items())
        doomed = set(document_ids)
        return [
            (speculation, search)
            for speculation, search in self._unclaimed.items()
            if not doomed.isdisjoint(one.id for one in speculation.documents)
            or not doomed.isdisjoint(forget_ids_of(search.tenant))
        ]

    def forget(self, document_ids: Collection[str]) -> None:
        """Remember no ended search that found one of these documents, or that was such a tenant's."""
        doomed = set(document_ids)
        for number, search in list(self._searches.items()):
            found = (one.id for one in (*(search.documents or ()), *search.candidates))
            if search.ended_s is not None and not doomed.isdisjoint(
                (*found, *forget_ids_of(search.tenant))
            ):
                del self._searches[number]

    def count_expected_prompts(
        self,
        search: TrackedSearch,
        now_s: float,
        search_s: Callable[[Hashable], float],
        prefill_s: float = 0.0,
    ) -> int:
        """Return how many other searches will soon send a prompt for which nothing was started.

        search_s: returns how long the searches of a chain take; 0 if that is not known. One that is late
          is expected as long as one that is early. prefill_s: how
        long a prefill takes: one that begins now is in the way of prompts that come sooner.
        """
        before_s = max(SOON_S, prefill_s)

        def is_expected(other: TrackedSearch) -> bool:
            if other.ended_s is not None:
                return now_s - other.ended_s < SOON_S
            # One that is late by as much may hang: nobody waits for it.
            return abs(other.started_s + search_s(other.chain) - now_s) <= before_s

        return sum(
            other is not search
            and not other.is_closed
            and other.speculation is None
            and is_expected(other)
            for other in self._searches.values()
        )
