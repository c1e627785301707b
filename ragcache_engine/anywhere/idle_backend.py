"""Puts around a backend what it does while no request runs: preparing donors, rechecking answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ragcache_engine.anywhere.donor_preparation import PreparingBackend
from ragcache_engine.anywhere.drift import Drift
from ragcache_engine.anywhere.idle_work import IdleWork
from ragcache_engine.anywhere.rechecking import RecheckingBackend
from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.protocols import Backend


@dataclass(frozen=True, slots=True)
class IdleBackend:
    """A backend, and what it does in idle time.

    backend: does what the one inside does. reports: each returns fields of CacheStats.
    works: what it does. drift: judges the rechecks; None without any. preparing: prepares donors; None
    if nobody does.
    """

    backend: Backend
    reports: Sequence[Callable[[], Mapping[str, Any]]]
    works: Sequence[IdleWork]
    drift: Drift | None = None
    preparing: PreparingBackend | None = None

    def is_switched_off(self) -> bool:
        """Return whether rechecked answers were so unlike that nothing is to be borrowed."""
        return self.drift is not None and self.drift.is_off

    def stats(self) -> CacheStats:
        """Return what was done in idle time, and nothing else. Any thread may call it."""
        return CacheStats(**{name: told for each in self.reports for name, told in each().items()})

    def open(self) -> None:
        """Begin with idle work, around a backend that runs already and is never started."""
        for work in self.works:
            work.open()

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Do no idle work while a request runs that reaches the model another way."""
        with ExitStack() as requests:
            for work in self.works:
                requests.enter_context(work.request())
            yield


def with_idle_work(
    inner: Backend, *, prepares_later: bool, recheck_share: float, least: float | None
) -> IdleBackend:
    """Return a backend around `inner` that prepares donors and rechecks answers while no request runs.

    prepares_later, recheck_share: as in EngineConfig. least: as in Drift.
    """
    drift = Drift(least) if recheck_share else None
    reports: list[Callable[[], Mapping[str, Any]]] = []
    works: list[IdleWork] = []
    backend, preparing = inner, None
    if prepares_later:
        backend = preparing = PreparingBackend(
            backend, is_wanted=lambda: drift is None or not drift.is_off
        )
        reports.append(preparing.report)
        works.append(preparing.idle)
    if drift:
        backend = rechecking = RecheckingBackend(backend, drift, recheck_share)
        reports.append(drift.report)
        works.append(rechecking.idle)
    return IdleBackend(backend, reports, works, drift, preparing)
