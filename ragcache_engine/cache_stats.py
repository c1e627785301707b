"""What an engine has counted since it started, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragcache_engine.knowledge.tier import Tier
from ragcache_engine.tables import ShownAsTable, Table
from ragcache_engine.tiers.counters import TierCounters
from ragcache_engine.values import (
    BORROWED,
    CachedTokens,
    HitRate,
    SpeculationStats,
    shares_by_source,
)

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class CacheStats(ShownAsTable):
    """The engine's counters since it started. Unfinished and cancelled requests count no tokens.

    Prompts that `warm` prefills count as running, and else only in `tiers`: nobody asked for answers.

    `print(stats)` shows a table, and so does a notebook.

    running: requests that run now. finished, cancelled, failed: requests that ended in this way.
    retried: second attempts of requests whose first attempt failed.
    restarts: how often the model's process was started again after it had died.
    prompt_tokens, output_tokens, cached, borrowed: of finished requests, as in Usage.
    unaccounted_tokens: those prompt_tokens of which the backend did not tell where they came from; the
      rates leave them out.
    approximate: finished requests that borrowed, so whose answers are not exact.
    unprepared: prompts with documents that had no donors, and wait to be prepared in idle time;
      see EngineConfig.missing_donors.
    found_unprepared: documents that wait to be prepared in idle time because a search found them, or ones
      near them, though no prompt has had them yet.
    prepared: prompts whose missing donors were computed in idle time.
    rechecked: approximate answers that were computed once more, exactly; see EngineConfig.recheck_share.
    drift: how unlike the last of these answers were: 1 less the mean ROUGE-L; None before the first.
    is_switched_off: whether they were so unlike that the engine borrows no more.
    tiers: how much the tiers evicted, copied, refused and found damaged, and how long scheduling took,
      as of the request that ended last. These counts start again from 0 with the model's process.
    by_chain, by_document: hit rates of finished requests whose documents were retrieved through the
      engine, or named; those with the most tokens first. Only those used lately: 64 chains, 1024
      documents. A chain is named by its key if that is a text, and numbered if not.

        >>> stats = CacheStats(finished=2, prompt_tokens=2000, cached=CachedTokens(device=500, host=500))
        >>> stats.hit_rate, stats.hit_ratio(Tier.HOST), stats.computed_tokens
        (0.5, 0.25, 1000)
        >>> stats
        CacheStats(finished=2, running=0, prompt_tokens=2000, hit_rate=50%)
    """

    running: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    retried: int = 0
    restarts: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached: CachedTokens = field(default_factory=CachedTokens)
    borrowed: CachedTokens = field(default_factory=CachedTokens)
    unaccounted_tokens: int = 0
    approximate: int = 0
    unprepared: int = 0
    found_unprepared: int = 0
    prepared: int = 0
    rechecked: int = 0
    drift: float | None = None
    is_switched_off: bool = False
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    tiers: TierCounters = field(default_factory=TierCounters)
    by_chain: tuple[HitRate, ...] = ()
    by_document: tuple[HitRate, ...] = ()

    @property
    def known_tokens(self) -> int:
        """The prompt tokens of finished requests of which it is known where they came from."""
        return self.prompt_tokens - self.unaccounted_tokens

    @property
    def computed_tokens(self) -> int:
        """How many prompt tokens of finished requests had to be prefilled, as far as that is known."""
        return self.known_tokens - self.cached.total - self.borrowed.total

    def hit_ratio(self, tier: Tier | None = None) -> float:
        """Return the share of prompt tokens reused exactly, from `tier` or any; 0 before any answer."""
        if not self.known_tokens:
            return 0.0
        cached = self.cached.total if tier is None else getattr(self.cached, tier.value)
        return float(cached) / self.known_tokens

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens reused exactly, from any tier; 0 before any answer."""
        return self.hit_ratio()

    @property
    def borrowed_rate(self) -> float:
        """The share of prompt tokens that were borrowed, so are approximate; 0 before any answer."""
        return self.borrowed.total / self.known_tokens if self.known_tokens else 0.0

    def __repr__(self) -> str:
        counts = f"finished={self.finished}, running={self.running}"
        problems = {"failed": self.failed, "cancelled": self.cancelled, "retried": self.retried}
        counts += "".join(f", {name}={number}" for name, number in problems.items() if number)
        borrowed = f", borrowed_rate={self.borrowed_rate:.0%}" if self.borrowed.total else ""
        return (
            f"CacheStats({counts}, prompt_tokens={self.prompt_tokens}, "
            f"hit_rate={self.hit_rate:.0%}{borrowed})"
        )

    def __str__(self) -> str:
        return self._table().as_text()

    def _table(self) -> Table:
        states = {
            "finished": self.finished,
            "running": self.running,
            "cancelled": self.cancelled,
            "failed": self.failed,
        }
        requests = ", ".join(f"{count:,} {state}" for state, count in states.items() if count)
        rows = [
            ("requests", requests or "none yet"),
            ("hit rate", f"{self.hit_rate:.0%} of {self.known_tokens:,} prompt tokens"),
            *(
                [("not told", f"where {self.unaccounted_tokens:,} prompt tokens came from")]
                if self.unaccounted_tokens
                else []
            ),
            *self._rows_of_borrowing(),
            *(
                (f"kept in {tier}", f"{kept:,} of {self.tiers.capacity[tier]:,} blocks")
                for tier, kept in self.tiers.kept.items()
                if kept
            ),
            ("answer tokens", f"{self.output_tokens:,}"),
        ]
        if self.retried:
            rows.append(("tried again", f"{self.retried:,}"))
        begun = self.speculation
        if begun.started:
            kept = begun.adopted + begun.prefilled
            rows.append(("begun early", f"{begun.started}, {kept} of them used"))
        rows += [(f"chain {one.name!r}", _describe_rate(one)) for one in self.by_chain[:_SHOWN]]
        rows += [
            (f"document {one.label or one.name!r}", _describe_rate(one))
            for one in self.by_document[:_SHOWN]
        ]
        bar = shares_by_source(self.known_tokens, self.cached, self.borrowed)
        return Table("Cache", rows, bar)

    def _rows_of_borrowing(self) -> list[tuple[str, str]]:
        """Return what an engine that borrows has to tell; nothing for one that has not borrowed."""
        rows = []
        if self.borrowed.total:
            rows.append(
                (BORROWED, f"{self.borrowed_rate:.0%} of {self.known_tokens:,} prompt tokens")
            )
        if self.approximate:
            rows.append(("approximate answers", f"{self.approximate:,} of {self.finished:,}"))
        if self.unprepared:
            rows.append(("prompts still to prepare", f"{self.unprepared:,}"))
        if self.drift is not None:
            rows.append(("drift", f"{self.drift:.2f} over {self.rechecked:,} rechecked answers"))
        if self.is_switched_off:
            rows.append(("borrowing", "switched off: answers drifted"))
        return rows


def _describe_rate(one: HitRate) -> str:
    prompts = "1 prompt" if one.prompts == 1 else f"{one.prompts:,} prompts"
    borrowed = f" exact, {one.borrowed_rate:.0%} borrowed" if one.borrowed_tokens else ""
    return f"{one.rate:.0%}{borrowed} of {one.tokens:,} tokens in {prompts}"
