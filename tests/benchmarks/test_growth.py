"""What a request costs by size: that it is measured at the size asked for."""

from __future__ import annotations

from studies.growth import measure_tree


def test_the_cost_of_a_tree_is_measured_at_its_size():
    cost = measure_tree(300, "lru")
    assert cost.nodes == 300
    assert 0 < cost.median_us <= cost.p99_us
