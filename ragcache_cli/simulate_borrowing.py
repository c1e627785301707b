"""Shows what reuse at any position would gain: exact, borrowed and recomputed tokens, each for itself."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from ragcache_cli.simulate_replays import ORACLE, BorrowingRow, Findings, SimulateSettings
from ragcache_cli.simulate_report import TIERS, size_text


def borrowing_table(found: Findings, settings: SimulateSettings) -> Table:
    """Show the replays of reuse at any position, a row for each capacity and ratio."""
    has_tiers = found.host_tokens > 0
    made = Table(
        title='Reuse at any position (reuse="anywhere"): approximate',
        caption="every document after the first is borrowed, stored alone behind the system text\n"
        "exact: found behind the same tokens; borrowed: taken from another context; anew: of borrowed\n"
        "documents, computed in this prompt; computed: all that is computed, anew or for the first time"
        + ("\nby tier: device + host + disk" if has_tiers else ""),
    )
    names = ["capacity", "policy", "ratio", "exact", "borrowed", "anew", "computed", "saved"]
    for name in names:
        made.add_column(name, justify="left" if name == "policy" else "right")
    previous: int | None = None
    for row in found.borrowing:
        size = size_text(row.capacity_tokens, settings.kv_token_bytes)
        made.add_row(
            size if previous != row.capacity_tokens else "",
            row.policy,
            f"{row.ratio:g}",
            _rates(row.exact_rates, has_tiers),
            _rates(row.borrowed_rates, has_tiers),
            f"{row.recomputed_rate:.1%}",
            f"{row.computed_rate:.1%}",
            f"{row.saved_s:,.1f} s",
        )
        previous = row.capacity_tokens
    return made


def _rates(rates: Mapping[str, float], has_tiers: bool) -> str:
    if not has_tiers:
        return f"{rates['device']:.1%}"
    return " + ".join(f"{rates[tier]:.0%}" for tier in TIERS)


def borrowing_answers(found: Findings, settings: SimulateSettings) -> list[str]:
    """Say in a sentence what the cheapest of these replays computes, beside exact reuse."""
    if not found.borrowing:
        return []
    best = min(found.borrowing, key=lambda row: (row.computed_rate, row.capacity_tokens))
    size = size_text(best.capacity_tokens, settings.kv_token_bytes)
    return [
        f"Reuse at any position, with {size} and ratio {best.ratio:g}, would compute "
        f"{best.computed_rate:.1%} of the prompt tokens{_beside(found, best)}. Its answers are "
        f"approximate: `ragcache calibrate` measures how close they come."
    ]


def _beside(found: Findings, best: BorrowingRow) -> str:
    """Say what exact reuse computes with the same memory and policy; nothing if it was not replayed."""
    for row in found.rows:
        same = (row.capacity_tokens, row.policy) == (best.capacity_tokens, best.policy)
        if same and row.order == "retrieved" and row.policy != ORACLE:
            return f", where exact reuse computes {1 - row.token_hit_rate:.1%}"
    return ""
