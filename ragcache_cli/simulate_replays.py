"""Replays a trace in every wanted setting, and returns the figures for `ragcache simulate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ragcache_cli.errors import CommandError
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.simulation.oracle import oracle, reuse_anywhere
from ragcache_engine.simulation.sizes import NOMINAL_TOKEN_BYTES, TierSizes
from ragcache_engine.simulation.trace_prompts import TracePrompts
from ragcache_engine.simulation.trace_replay import (
    TraceReplay,
    endless_hit_rate,
    replay_borrowing,
    replay_trace,
)
from ragcache_engine.simulation.traces import Trace

ORACLE = "oracle"
"""The name of the oracle in rows, where others have a policy."""


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """The arguments of the command.

    capacities: sizes of the device, in tokens, or as shares of all document tokens such as "5%".
    kv_token_bytes: bytes of one token's tensors; None if no model was named.
    block_tokens: tokens in a block.
    host_cache, disk_cache: sizes, written like a capacity; None for no such tier.
    ratios: replay reuse at any position too, with these shares of borrowed documents computed anew.
    """

    capacities: tuple[str, ...]
    policies: tuple[str, ...]
    orders: tuple[str, ...]
    system_tokens: int
    kv_token_bytes: int | None
    output: Path
    block_tokens: int = 16
    host_cache: str | None = None
    disk_cache: str | None = None
    ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise CommandError(f"--block-size takes 1 token or more, got {self.block_tokens}")
        if self.disk_cache is not None and self.host_cache is None:
            raise CommandError("--disk-cache needs --host-cache, through which its blocks travel")


@dataclass(frozen=True, slots=True)
class Row:
    """One replay. of_oracle: token hits as a share of the oracle's; None without an oracle.

    tier_hit_rates: the token hit rate by tier; None without slower tiers, and for the oracle.
    too_long: requests whose prompt does not fit into the device's capacity.
    """

    capacity_tokens: int
    policy: str
    order: str
    document_hit_rate: float
    token_hit_rate: float
    saved_s: float
    saved_share: float
    of_oracle: float | None
    tier_hit_rates: dict[str, float] | None = None
    too_long: int = 0


@dataclass(frozen=True, slots=True)
class BorrowingRow:
    """One replay of reuse at any position. Exact and borrowed tokens are told apart, not added up.

    exact_rates, borrowed_rates: shares of the prompt tokens by tier. recomputed_rate: the share that
      belongs to borrowed documents and is computed anew; computed_rate: all that is computed, with it.
    too_long: as in Row.
    """

    capacity_tokens: int
    policy: str
    ratio: float
    exact_rates: dict[str, float]
    borrowed_rates: dict[str, float]
    recomputed_rate: float
    computed_rate: float
    saved_s: float
    saved_share: float
    too_long: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """The figures of all replays.

    endless: the token hit rate of each order if nothing was ever evicted.
    anywhere: the token hit rate if a document could be reused at any position, and nothing was evicted.
    host_tokens, disk_tokens: the sizes of the slower tiers.
    borrowing: the replays of reuse at any position.
    """

    requests: int
    documents: int
    document_tokens: int
    rows: tuple[Row, ...]
    endless: dict[str, float]
    anywhere: float
    block_tokens: int = 1
    host_tokens: int = 0
    disk_tokens: int = 0
    borrowing: tuple[BorrowingRow, ...] = ()


def run(
    trace: Trace,
    profile: CostProfile,
    settings: SimulateSettings,
    capacities: Sequence[int],
    done: Callable[[int, int], None],
) -> Findings:
    """Replay the trace in every setting. done: called with the number of replays so far, and of all."""
    total = len(settings.orders) * (1 + len(capacities) * (1 + len(settings.policies)))
    total += len(capacities) * len(settings.ratios)
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        done(count, total)

    tiers = _SlowerTiers.of(settings, sum(trace.tokens.values()))
    prompts = TracePrompts(
        trace,
        system_tokens=settings.system_tokens,
        block_tokens=settings.block_tokens,
        has_disk=tiers.disk_tokens > 0,
    )
    rows: list[Row] = []
    endless: dict[str, float] = {}
    for order in settings.orders:
        endless[order] = endless_hit_rate(trace, prompts, settings.policies[0], order=order)
        step()
        for capacity in capacities:
            best = _oracle(trace, capacity + tiers.tokens, order, settings.system_tokens)
            step()
            if best is not None:
                rate = best / _prompt_tokens(trace, settings.system_tokens)
                rows.append(Row(capacity, ORACLE, order, 0.0, rate, 0.0, 0.0, 1.0))
            for policy in settings.policies:
                result = replay_trace(
                    trace,
                    prompts,
                    tiers.below(capacity, settings),
                    policy,
                    profile=profile,
                    order=order,
                )
                step()
                rows.append(_row(capacity, policy, order, result, best, tiers.tokens > 0))
    borrowing = []
    for capacity in capacities:
        for ratio in settings.ratios:
            sizes, policy = tiers.below(capacity, settings), settings.policies[-1]
            borrowed = replay_borrowing(trace, prompts, sizes, policy, profile=profile, ratio=ratio)
            borrowing.append(_borrowing_row(capacity, policy, ratio, borrowed))
            step()
    anywhere = reuse_anywhere(trace) + max(0, len(trace) - 1) * settings.system_tokens
    return Findings(
        len(trace),
        len(trace.tokens),
        sum(trace.tokens.values()),
        tuple(rows),
        endless,
        anywhere / _prompt_tokens(trace, settings.system_tokens),
        settings.block_tokens,
        tiers.host_tokens,
        tiers.disk_tokens,
        tuple(borrowing),
    )


@dataclass(frozen=True, slots=True)
class _SlowerTiers:
    """The sizes of the tiers below the device."""

    host_tokens: int
    disk_tokens: int

    @classmethod
    def of(cls, settings: SimulateSettings, document_tokens: int) -> _SlowerTiers:
        def tokens(text: str | None, option: str) -> int:
            return 0 if text is None else tokens_of(text, document_tokens, option)

        return cls(
            tokens(settings.host_cache, "--host-cache"),
            tokens(settings.disk_cache, "--disk-cache"),
        )

    @property
    def tokens(self) -> int:
        return self.host_tokens + self.disk_tokens

    def below(self, capacity: int, settings: SimulateSettings) -> TierSizes:
        """Return the sizes of all tiers for a device of this capacity, in whole blocks, at least one."""

        def blocks(tokens: int) -> int:
            return max(1, tokens // settings.block_tokens) if tokens else 0

        return TierSizes(
            settings.block_tokens,
            blocks(capacity),
            blocks(self.host_tokens),
            blocks(self.disk_tokens),
            settings.kv_token_bytes or NOMINAL_TOKEN_BYTES,
        )


def _prompt_tokens(trace: Trace, system_tokens: int) -> int:
    documents = sum(sum(trace.tokens[name] for name in request) for request in trace.requests)
    return documents + len(trace) * system_tokens


def _row(
    capacity: int,
    policy: str,
    order: str,
    result: TraceReplay,
    best: int | None,
    has_slower_tiers: bool,
) -> Row:
    tokens = result.prompt_tokens
    return Row(
        capacity,
        policy,
        order,
        result.document_hit_rate,
        result.token_hit_rate,
        result.saved_s,
        result.saved_s / result.cold_s if result.cold_s else 0.0,
        result.cached.total / best if best else None,
        {tier: hits / tokens for tier, hits in asdict(result.cached).items()}
        if has_slower_tiers and tokens
        else None,
        result.too_long,
    )


def _borrowing_row(capacity: int, policy: str, ratio: float, result: TraceReplay) -> BorrowingRow:
    tokens = result.prompt_tokens or 1
    return BorrowingRow(
        capacity_tokens=capacity,
        policy=policy,
        ratio=ratio,
        exact_rates={tier: hits / tokens for tier, hits in asdict(result.cached).items()},
        borrowed_rates={tier: hits / tokens for tier, hits in asdict(result.borrowed).items()},
        recomputed_rate=result.recomputed_rate,
        computed_rate=1 - result.token_hit_rate - result.borrowed_rate,
        saved_s=result.saved_s,
        saved_share=result.saved_s / result.cold_s if result.cold_s else 0.0,
        too_long=result.too_long,
    )


def _oracle(trace: Trace, capacity: int, order: str, system_tokens: int) -> int | None:
    """Return the oracle's token hits; None with order "cached", whose requests depend on the cache."""
    if order == "canonical":
        trace = Trace(tuple(tuple(sorted(r)) for r in trace.requests), trace.tokens)
    elif order != "retrieved":
        return None
    return oracle(trace, capacity, system_tokens=system_tokens).tokens


def tokens_of(text: str, document_tokens: int, option: str = "--capacity") -> int:
    """Read "5%" as a share of the documents, "4000" as tokens. Raises CommandError with the option."""
    is_share = text.endswith("%")
    try:
        tokens = float(text[:-1]) / 100 * document_tokens if is_share else float(text)
    except ValueError:
        tokens = 0.0
    if is_share and tokens > 0:
        return max(1, round(tokens))  # a small share of a few short files
    if tokens < 1:
        raise CommandError(f"{option} takes tokens or a share such as 5%, got {text!r}")
    return round(tokens)
