"""Estimates what prefilling a corpus takes, before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragcache_engine import Corpus, Document
from ragcache_engine.knowledge.cost import CostProfile


@dataclass(frozen=True, slots=True)
class WarmingEstimate:
    """What prefilling takes if nothing is cached yet.

    tokens: how many tokens to compute and store. seconds: by the cost profile, one prompt at a time.
    """

    documents: int
    tokens: int
    seconds: float


def estimate_warming(
    documents: Sequence[Document],
    count_tokens: Callable[[str], int],
    profile: CostProfile,
    *,
    system_text: str,
    corpus: Corpus | None,
) -> WarmingEstimate:
    """Estimate what it takes to prefill each document first, and also behind its neighbour.

    system_text: what stands before the documents. corpus: where neighbours are looked up; None if
    documents are stored behind the system text only.
    """
    system, texts = count_tokens(system_text), {one.id: one.text for one in documents}
    lengths = {name: count_tokens(text) for name, text in texts.items()}
    tokens, seconds = system, profile.prefill_s(0, system) if system else 0.0
    for length in lengths.values():
        tokens += length
        seconds += profile.prefill_s(system, length)
    near = corpus.look_up(documents) if corpus else [()] * len(documents)
    for document, neighbours in zip(documents, near, strict=True):
        if not neighbours:
            continue
        neighbour = neighbours[0]
        length, before = lengths[document.id], lengths.get(neighbour.id)
        if before is None:
            # It is none of these documents, so it is computed for this one.
            before = lengths[neighbour.id] = count_tokens(neighbour.text)
            tokens += before
            seconds += profile.prefill_s(system, before)
        tokens += length
        seconds += profile.prefill_s(system + before, length)
    return WarmingEstimate(len(documents), tokens, seconds)
