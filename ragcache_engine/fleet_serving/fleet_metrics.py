"""Joins what the replicas of a fleet say at /metrics into one page for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

METRICS_PATH = "/metrics"

LABEL = "replica"
"""The label that keeps the replicas' samples apart. Summing over it gives the fleet's figures."""


def join_metrics(pages: Mapping[str, str]) -> bytes:
    """Return one page with every sample of every page, each with the name of its replica as a label.

    pages: Prometheus' text by the name of the replica that wrote it. Raises ValueError if one is none.
    """
    families: dict[tuple[str, str], Metric] = {}
    for replica, text in pages.items():
        for found in text_string_to_metric_families(text):
            joined = families.setdefault(
                (found.name, found.type), Metric(found.name, found.documentation, found.type)
            )
            joined.samples += [
                sample._replace(labels={**sample.labels, LABEL: replica})
                for sample in found.samples
            ]
    return generate_latest(_Families(families.values()))


class _Families:
    """What prometheus_client's exposition collects from."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
