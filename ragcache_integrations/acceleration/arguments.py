"""The arguments of `accelerate` beside the chain, typed once for the signatures of both frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Required, TypeAlias, TypedDict

from ragcache_engine import RAGCacheEngine
from ragcache_integrations.acceleration.report import AccelerationReport
from ragcache_integrations.acceleration.task import ModelChoice

ReportTo: TypeAlias = Callable[[AccelerationReport], object]


class AccelerateArguments(TypedDict, total=False):
    """For overloads, which differ in the chain alone. The docstring of `accelerate` explains them."""

    engine: Required[RAGCacheEngine]
    models: ModelChoice
    retrievers: bool
    keep: Sequence[object]
    options: Mapping[str, Any] | None
    report: ReportTo
