"""The simulation answers what its user asked: how much memory, which policy, which order."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_cli.errors import CommandError
from ragcache_cli.simulate import SimulateSettings, simulate
from ragcache_cli.simulate_replays import ORACLE, tokens_of
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.simulation.traces import Trace

# Pairs of documents, each asked for in one order, in the other, and in the first again.
PAIRS = [(f"a{n}", f"b{n}") for n in range(20)]
SWAPPED = Trace(
    tuple(request for pair in PAIRS for request in (pair, pair[::-1], pair)),
    {document: 100 for pair in PAIRS for document in pair},
)


def settings(folder: Path, **changes: object) -> SimulateSettings:
    values = {
        "capacities": ("500", "100%"),
        "policies": ("lru", "pgdsf"),
        "orders": ("retrieved", "canonical", "cached"),
        "system_tokens": 10,
        "kv_token_bytes": None,
        "output": folder,
    }
    return SimulateSettings(**{**values, **changes})  # type: ignore[arg-type]


def simulated(folder: Path, **changes: object):
    terminal = Console(file=StringIO(), width=140)
    found = simulate(SWAPPED, CostProfile.default(), settings(folder, **changes), terminal)
    return found, terminal.file.getvalue()


def test_every_setting_has_its_row_and_none_beats_the_oracle(tmp_path):
    found, _ = simulated(tmp_path)
    assert len(found.rows) == 2 * 3 * 2 + 2 * 2  # no oracle where the cache decides the order
    for row in found.rows:
        if row.of_oracle is not None:
            assert row.of_oracle <= 1 + 1e-9
        if row.policy != ORACLE:
            assert 0 <= row.document_hit_rate <= 1
            assert 0 <= row.saved_share <= 1


def test_reordering_is_advised_where_it_helps(tmp_path):
    found, said = simulated(tmp_path)
    assert found.endless["canonical"] > found.endless["retrieved"]
    assert "Reordering documents (c" in said
    _, said = simulated(tmp_path, orders=("retrieved",))
    assert "Reordering" not in said


def test_the_memory_that_is_enough_is_named_in_bytes_if_the_model_is_known(tmp_path):
    _, said = simulated(tmp_path, capacities=("5%", "1000"), kv_token_bytes=1 << 20)
    assert "retrieved: 1000 MiB with" in said


def test_too_little_memory_is_told_as_such(tmp_path):
    _, said = simulated(tmp_path, capacities=("15",))
    assert "Try a larger --capacity" in said


def test_figures_and_picture_are_written(tmp_path):
    simulated(tmp_path / "new")
    assert (tmp_path / "new" / "simulate.png").read_bytes().startswith(b"\x89PNG")
    assert '"document_tokens": 4000' in (tmp_path / "new" / "simulate.json").read_text()


@pytest.mark.parametrize(("text", "tokens"), [("50%", 150), ("1e3", 1000), ("7", 7), ("0.1%", 1)])
def test_capacities_are_shares_or_tokens(text, tokens):
    assert tokens_of(text, 300) == tokens


@pytest.mark.parametrize("text", ["0", "-5%", "0%", "lots"])
def test_capacities_that_hold_nothing_are_refused(text):
    with pytest.raises(CommandError, match="--capacity"):
        tokens_of(text, 300)


def test_hits_by_tier_are_shown_and_written_where_there_are_slower_tiers(tmp_path):
    changes = {"capacities": ("300",), "orders": ("retrieved",), "policies": ("lru",)}
    found, said = simulated(tmp_path, host_cache="600", disk_cache="200%", **changes)
    (row,) = [row for row in found.rows if row.policy == "lru"]
    assert row.tier_hit_rates is not None
    assert sum(row.tier_hit_rates.values()) == pytest.approx(row.token_hit_rate)
    assert row.tier_hit_rates["host"] + row.tier_hit_rates["disk"] > 0
    assert (found.host_tokens, found.disk_tokens) == (600, 8000)
    assert "by tier: tokens from device + host + disk" in said
    assert '"host": 0.' in (tmp_path / "simulate.json").read_text()
    found, said = simulated(tmp_path, **changes)
    assert all(row.tier_hit_rates is None for row in found.rows)
    assert "by tier" not in said


def test_slower_tiers_raise_the_hits_and_the_oracle_has_their_room(tmp_path):
    changes = {"capacities": ("300",), "orders": ("retrieved",)}
    alone, _ = simulated(tmp_path, **changes)
    both, _ = simulated(tmp_path, host_cache="100%", **changes)
    for without, with_host in zip(alone.rows, both.rows, strict=True):
        assert with_host.token_hit_rate >= without.token_hit_rate
    assert all(row.of_oracle is None or row.of_oracle <= 1 + 1e-9 for row in both.rows)


def test_smaller_blocks_find_more(tmp_path):
    one = {"capacities": ("100%",), "orders": ("retrieved",), "policies": ("lru",)}
    rates = [
        simulated(tmp_path, block_tokens=size, **one)[0].rows[1].token_hit_rate
        for size in (1, 16, 64)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[2]


def test_the_table_says_that_the_oracle_knows_no_blocks(tmp_path):
    _, said = simulated(tmp_path, block_tokens=8, orders=("retrieved",))
    assert "whole blocks of 8 tokens; the oracle knows no blocks" in said


def test_prompts_that_do_not_fit_on_the_device_are_told_as_such(tmp_path):
    found, said = simulated(tmp_path, capacities=("100", "500"), orders=("retrieved",))
    assert {row.too_long for row in found.rows if row.capacity_tokens == 100} == {0, 60}
    assert {row.too_long for row in found.rows if row.capacity_tokens == 500} == {0}
    assert "with 100 tokens, 60 of 60 requests" in said


def test_a_disk_without_a_host_above_it_is_refused(tmp_path):
    with pytest.raises(CommandError, match="--disk-cache needs --host-cache"):
        settings(tmp_path, disk_cache="50%")


@pytest.mark.parametrize("option", ["host_cache", "disk_cache"])
def test_sizes_of_tiers_that_hold_nothing_are_refused(tmp_path, option):
    with pytest.raises(CommandError, match="--" + option.replace("_", "-")):
        simulated(tmp_path, **{"host_cache": "100%", option: "lots"})
