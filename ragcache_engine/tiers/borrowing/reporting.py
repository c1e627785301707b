"""Reports what a prompt that borrowed has reused."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, DocumentSpan
from ragcache_engine.tiers.borrowing.report import DocumentReuse, ReuseReport


def report_borrowing(
    plan: BorrowPlan,
    found: Mapping[int, Tier | None],
    shared_tokens: int = 0,
    prefix: Mapping[Tier, int] | None = None,
) -> ReuseReport:
    """Report what a request with this plan has reused.

    found: for each donor of the plan where its tensors were when the request came.
    shared_tokens: how many leading tokens were on the device from an earlier prompt with this very plan.
    prefix: how many tokens of the first donor each tier had then; None if the device had all.
    """
    _, recomputed = plan.after(shared_tokens)
    *before, last = plan.documents[: plan.exact_documents]
    documents = [_report_exact(span, _find_tier(prefix, span.end)) for span in before]
    documents.append(_report_exact(last, found.get(0)))
    for place, span in enumerate(plan.documents[plan.exact_documents :], 1):
        anew = bisect_left(recomputed, span.end) - bisect_left(recomputed, span.start)
        anew += max(0, span.end - plan.end)  # the end of the last document, which no donor lends
        is_shared = shared_tokens >= min(span.end, plan.end)
        tier = Tier.DEVICE if is_shared else found.get(place)
        tokens = span.end - span.start
        joined = plan.count_copied(plan.lent_document(place - 1).end, span.start)
        documents.append(
            DocumentReuse(
                span.document, tokens, tier.value if tier else None, tokens - anew, anew, joined
            )
        )
    computed = len(recomputed) + max(0, plan.documents[-1].end - plan.end)
    of_documents = sum(document.recomputed for document in documents)
    return ReuseReport(tuple(documents), computed - of_documents)


def _find_tier(prefix: Mapping[Tier, int] | None, end: int) -> Tier | None:
    """Return the tier that had the last of the first `end` tokens; None if they were computed."""
    if prefix is None:
        return Tier.DEVICE
    for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK):
        end -= prefix.get(tier, 0)
        if end <= 0:
            return tier
    return None


def _report_exact(span: DocumentSpan, tier: Tier | None) -> DocumentReuse:
    return DocumentReuse(span.document, span.end - span.start, tier.value if tier else None)
