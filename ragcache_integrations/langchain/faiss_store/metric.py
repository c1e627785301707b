"""How near two vectors are: which metric Faiss is given, and what its scores mean.

Scores are Faiss's own. Relevances are in [0, 1], 1 for the most relevant, as LangChain expects them.
"""

from __future__ import annotations

from enum import StrEnum
from math import exp, sqrt

import faiss
import numpy as np
from numpy.typing import NDArray

from ragcache_engine import ConfigError

FloatMatrix = NDArray[np.float32]


class Metric(StrEnum):
    """COSINE, INNER_PRODUCT: higher is nearer. L2, the squared Euclidean distance: lower is nearer."""

    COSINE = "cosine"
    L2 = "l2"
    INNER_PRODUCT = "inner_product"

    @property
    def faiss_metric(self) -> int:
        kind = faiss.METRIC_L2 if self is Metric.L2 else faiss.METRIC_INNER_PRODUCT
        return int(kind)

    def as_indexed(self, vectors: FloatMatrix) -> FloatMatrix:
        """Return the vectors as the index holds them; for the cosine, scaled to length 1 (0 stays 0).

        vectors: shape (n, dimensions).
        """
        if self is not Metric.COSINE:
            return vectors
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        unit: FloatMatrix = (vectors / np.where(lengths == 0.0, 1.0, lengths)).astype(np.float32)
        return unit

    def is_at_least_as_near(self, score: float, threshold: float) -> bool:
        return score <= threshold if self is Metric.L2 else score >= threshold

    def relevance(self, score: float) -> float:
        """Return the relevance of a score.

        cosine: the cosine itself; vectors that point away from the query get 0.
        l2: 1 / (1 + distance), where the distance is not squared.
        inner product: the logistic function, because inner products have no bounds. For vectors of
        length 1 the cosine is the better metric, because its relevances differ more.
        """
        if self is Metric.L2:
            return 1.0 / (1.0 + sqrt(max(score, 0.0)))
        if self is Metric.INNER_PRODUCT:
            # Either form alone would overflow at one of the ends.
            grown = exp(-abs(score))
            return 1.0 / (1.0 + grown) if score >= 0 else grown / (1.0 + grown)
        return min(max(score, 0.0), 1.0)


def choose_metric(name: str | None, index: object) -> Metric:
    """Return the metric of a new store: the one named, else the given index's own, else the cosine.

    index: the store's argument `index`; only a faiss.Index has a metric of its own.
    Raises ConfigError for an unknown name, or if the given index has another metric.
    """
    own = getattr(index, "metric_type", None)
    if name is None:
        if own is None:
            return Metric.COSINE
        name = Metric.L2 if own == faiss.METRIC_L2 else Metric.INNER_PRODUCT
    try:
        metric = Metric(name)
    except ValueError:
        known = ", ".join(repr(str(metric)) for metric in Metric)
        raise ConfigError(f"metric={name!r} is not known; choose one of {known}") from None
    if own is not None and own != metric.faiss_metric:
        raise ConfigError(
            f"metric={name!r} does not fit the given index, whose metric_type is {own}; build it "
            f"with {'METRIC_L2' if metric is Metric.L2 else 'METRIC_INNER_PRODUCT'}, or leave "
            f"the metric out"
        )
    return metric
