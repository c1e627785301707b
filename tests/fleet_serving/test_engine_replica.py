"""On which cores a replica computes."""

from __future__ import annotations

import pytest

pytest.importorskip("ray.serve")

from ragcache_engine.fleet_serving.engine_replica import _own_cores


def test_replicas_on_one_machine_share_no_core():
    parts = [_own_cores(range(8), rank, 3) for rank in range(3)]
    assert sorted(core for part in parts for core in part) == list(range(8))
    assert _own_cores([5], 1, 2) == []
