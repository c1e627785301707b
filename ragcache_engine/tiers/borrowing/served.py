"""Donors that served prompts left behind, for donors="any". Pure Python.

Cache-Craft keeps the tensors of a document as some prompt computed them, several variants of each, and
borrows the variant whose prompt was most alike (sections 3.1 to 3.3). Here a variant is a path of the
knowledge tree, so nothing is stored twice: only the tokens that lead to it are kept. Only exact tensors
become variants. Cache-Craft weights documents by the attention they drew; vLLM's kernels keep their
attention to themselves, so here tokens are the weights.
"""

from __future__ import annotations

import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil

from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.tiers.borrowing.donor import Donor
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, DocumentSpan, Lenders
from ragcache_engine.tiers.prompts import SegmentEnd

MOST_VARIANTS = 5
"""Of one document."""
MOST_TOKENS = 2_000_000
"""Token ids that all variants keep together, 8 bytes each."""
MOST_TOKENS_OF_PROMPT = MOST_TOKENS // 8
"""So many of one prompt, or it would drive out everybody's."""

Content = tuple[str | None, str, bytes]
"""The tenant, the document, and a digest of the system text and the document's tokens."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A served prompt up to one of its documents.

    token_ids: up to the end of the last full block with a token that the document lends, and one more.
    before: the documents before it, in their order, with their tokens.
    """

    token_ids: array.array[int]
    segments: tuple[SegmentEnd, ...]
    start: int
    before: tuple[tuple[str, int], ...]

    @property
    def donor(self) -> Donor:
        return Donor(tuple(self.token_ids), self.segments, self.start)

    def measure_overlap(self, places: Mapping[str, int], end: int) -> float:
        """Return beta' (Cache-Craft, equations 6 to 8): how much of what stood before does so again.

        places: for each document of a prompt its first place. end: at which place this one stands.
        Tokens of documents that stand before it in both, over all tokens of documents before it, times
        the share of pairs in the same order. 0 for a document that stood first.
        """
        common = [(at, n) for name, n in self.before if (at := places.get(name, end)) < end]
        if not common:
            return 0.0
        pairs, ordered = len(common) * (len(common) - 1) // 2, 0
        seen: list[int] = []
        for at, _ in common:
            place = bisect_left(seen, at)
            ordered += place
            seen.insert(place, at)
        tokens = sum(n for _, n in common) / sum(n for _, n in self.before)
        return tokens * (ordered / pairs if pairs else 1.0)


class ServedDocuments:
    """Variants of documents, the latest used ones."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._variants: OrderedDict[Content, list[Variant]] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        """Return how many documents have variants."""
        return len(self._variants)

    def add(
        self,
        tenant: str | None,
        token_ids: Sequence[int],
        spans: Sequence[DocumentSpan],
        system_tokens: int,
    ) -> None:
        """Keep the documents of a prompt whose tensors are all exact.

        system_tokens: how many tokens stand before the first document.
        """
        system = token_ids[:system_tokens]
        name_of = _naming(tenant, system, token_ids)
        room = MOST_TOKENS_OF_PROMPT
        segments: list[SegmentEnd] = [(len(system), None)] if system else []
        before: list[tuple[str, int]] = []
        # vLLM keeps no block that is not full, and always computes the last token of a prompt.
        full = (len(token_ids) - 1) // self._block_tokens
        for span in spans:
            whole = min(ceil(span.known_end / self._block_tokens), full) * self._block_tokens
            room -= whole + 1
            if whole <= span.start or room < 0:
                return
            # What fills the last block is the document's, so that the block is the document's.
            variant = Variant(
                array.array("q", token_ids[: whole + 1]),
                (*segments, (whole, span.document)),
                span.start,
                tuple(before),
            )
            self._keep(name_of(span), variant)
            segments.append((span.end, span.document))
            before.append((span.document, span.end - span.start))

    def add_plan(self, tenant: str | None, plan: BorrowPlan) -> None:
        """Keep what a prompt that borrowed has left: its exact documents, and donors made for it."""
        exact = plan.documents[: plan.exact_documents]
        system = plan.system_tokens
        self.add(tenant, plan.donors[0].token_ids, exact, system)
        for place, donor in enumerate(plan.donors[1:], 1):
            if donor.start == system:
                span = plan.lent_document(place)
                end = system + span.end - span.start
                self.add(
                    tenant, donor.token_ids, [DocumentSpan(span.document, system, end)], system
                )

    def choose(
        self,
        tenant: str | None,
        token_ids: Sequence[int],
        spans: Sequence[DocumentSpan],
        system_tokens: int,
        *,
        is_exact: Callable[[int], bool],
        is_held: Callable[[Donor], bool],
    ) -> Lenders:
        """Return how many documents to take exactly, and donors for later ones.

        Exact are the first one, those that follow it here as they did before, and those that were in no
        prompt, as long as all before them are exact: so what is new is computed where it stands.
        spans: one at least. is_exact: returns whether some tier has the prompt's first tokens, this many,
        as computed behind the same tokens. is_held: returns whether some tier has a donor's tensors.
        """
        name_of = _naming(tenant, token_ids[:system_tokens], token_ids)
        places: dict[str, int] = {}
        for place, span in enumerate(spans):
            places.setdefault(span.document, place)
        exact = 0
        served: dict[int, Donor] = {}
        for place, span in enumerate(spans):
            if exact == place and (not place or is_exact(span.known_end)):
                exact += 1
                continue
            donor = self._find(name_of(span), places, place, is_held)
            if donor is not None:
                served[place] = donor
            elif exact == place:
                exact += 1
        return Lenders(exact, served)

    def forget(self, documents: Sequence[str]) -> None:
        """Drop all variants in whose prompt one of these documents stood, and those of such a tenant."""
        gone = set(documents)
        for name, variants in list(self._variants.items()):
            is_tenants = not gone.isdisjoint(forget_ids_of(name[0]))
            for variant in list(variants):
                if is_tenants or gone.intersection(one for _, one in variant.segments):
                    self._drop(name, variant)

    def _find(
        self,
        name: Content,
        places: Mapping[str, int],
        place: int,
        is_held: Callable[[Donor], bool],
    ) -> Donor | None:
        """Return the variant that was behind the most alike documents; the latest of equal ones."""
        variants = self._variants.get(name)
        if variants is None:
            return None
        self._variants.move_to_end(name)
        latest_first = variants[::-1]
        latest_first.sort(key=lambda one: one.measure_overlap(places, place), reverse=True)
        for variant in latest_first:
            donor = variant.donor
            if is_held(donor):
                return donor
            self._drop(name, variant)
        return None

    def _keep(self, name: Content, variant: Variant) -> None:
        variants = self._variants.setdefault(name, [])
        self._variants.move_to_end(name)
        if variant in variants:
            variants.remove(variant)
            self._tokens -= len(variant.token_ids)
        variants.append(variant)
        self._tokens += len(variant.token_ids)
        if len(variants) > MOST_VARIANTS:
            self._drop(name, variants[0])
        while self._tokens > MOST_TOKENS:
            oldest = next(iter(self._variants))
            self._drop(oldest, self._variants[oldest][0])

    def _drop(self, name: Content, variant: Variant) -> None:
        variants = self._variants[name]
        variants.remove(variant)
        self._tokens -= len(variant.token_ids)
        if not variants:
            del self._variants[name]


def _naming(
    tenant: str | None, system: Sequence[int], token_ids: Sequence[int]
) -> Callable[[DocumentSpan], Content]:
    """Return what names the documents of a prompt."""
    beginning = sha256(array.array("q", [len(system), *system]).tobytes())

    def name(span: DocumentSpan) -> Content:
        content = beginning.copy()
        content.update(array.array("q", token_ids[span.start : span.known_end]).tobytes())
        return tenant, span.document, content.digest()

    return name
