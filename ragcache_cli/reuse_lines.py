"""Says in words what an answer reused: exactly, and from other contexts."""

from __future__ import annotations

from collections.abc import Mapping

from ragcache_engine import CachedTokens, DocumentReuse, Tier, Usage


def usage_line(usage: Usage) -> str:
    """Say in one line what an answer cost. Exact and borrowed tokens are never added up."""
    cached = (
        _by_tier(usage.cached, "cached") if usage.has_account else "nobody knows how many cached"
    )
    parts = [f"{usage.prompt_tokens} prompt tokens", cached]
    if not usage.is_exact and usage.has_account:
        parts.append(_by_tier(usage.borrowed, "borrowed (approximate)"))
    parts.append(f"{usage.output_tokens} in the answer")
    return (
        f"first token after {usage.ttft_s:.2f} s, all after {usage.total_s:.2f} s; "
        f"{', '.join(parts)}"
    )


def _by_tier(tokens: CachedTokens, verb: str) -> str:
    by_tier = {tier: getattr(tokens, tier.value) for tier in Tier}
    told = ", ".join(f"{count} from {tier}" for tier, count in by_tier.items() if count)
    return f"{tokens.total} {verb}{f' ({told})' if told else ''}"


def exactness_line(usage: Usage) -> str:
    """Say whether an answer is exact, and why, for an engine that may borrow."""
    if usage.is_exact:
        return f"exact: {usage.why_exact or 'nothing was borrowed'}"
    if not usage.has_account:
        return "perhaps approximate: nobody knows what was borrowed"
    lent = sum(one.borrowed + one.joined for one in usage.reused)
    return (
        f"approximate: {lent} tokens borrowed from other contexts, {usage.borrowed.total} of them "
        f"cached; {usage.recomputed_tokens} of the same documents recomputed"
    )


def document_notes(usage: Usage) -> Mapping[str, str]:
    """Say for each document of a prompt that borrowed where its tensors came from."""
    return {one.document: _document_note(one) for one in usage.reused}


def _document_note(one: DocumentReuse) -> str:
    where = f"from {one.tier}" if one.tier else "computed now"
    if not one.borrowed and not one.recomputed:
        return f"exact, {where}"
    return f"{one.borrowed} tokens borrowed ({where}), {one.recomputed} recomputed"
