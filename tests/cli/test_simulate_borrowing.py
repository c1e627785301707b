"""What `ragcache simulate` says of reuse at any position: exact and borrowed tokens, each for itself."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_cli.main import main
from ragcache_cli.simulate import SimulateSettings, simulate
from ragcache_cli.simulate_replays import Findings
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.simulation.traces import Trace

# Pairs of documents, each asked for in one order, in the other, and in the first again.
SWAPPED = Trace(
    tuple(
        request
        for n in range(10)
        for request in ((f"a{n}", f"b{n}"), (f"b{n}", f"a{n}"), (f"a{n}", f"b{n}"))
    ),
    {f"{letter}{n}": 100 for letter in "ab" for n in range(10)},
)


def simulated(folder: Path, *ratios: float, **tiers: str) -> tuple[Findings, str]:
    terminal = Console(file=StringIO(), width=140)
    settings = SimulateSettings(
        capacities=("1000", "100%"),
        policies=("lru",),
        orders=("retrieved",),
        system_tokens=16,
        kv_token_bytes=None,
        output=folder,
        ratios=ratios,
        **tiers,
    )
    found = simulate(SWAPPED, CostProfile.default(), settings, terminal)
    return found, terminal.file.getvalue()  # type: ignore[attr-defined]


def test_each_capacity_and_ratio_has_a_row(tmp_path: Path):
    found, said = simulated(tmp_path, 0.0, 0.2)
    tried = [(row.capacity_tokens, row.ratio) for row in found.borrowing]
    assert tried == [(1000, 0.0), (1000, 0.2), (2000, 0.0), (2000, 0.2)]
    assert "approximate" in said


def test_exact_borrowed_and_computed_tokens_are_the_whole(tmp_path: Path):
    found, _ = simulated(tmp_path, 0.2, host_cache="2000", disk_cache="4000")
    for row in found.borrowing:
        exact, borrowed = sum(row.exact_rates.values()), sum(row.borrowed_rates.values())
        assert exact > 0
        assert borrowed > 0
        assert exact + borrowed + row.computed_rate == pytest.approx(1)
        assert row.recomputed_rate <= row.computed_rate


def test_more_recomputing_borrows_less_and_the_answer_names_the_least(tmp_path: Path):
    found, said = simulated(tmp_path, 0.0, 0.5)
    least, more = found.borrowing[2:]
    assert least.computed_rate < more.computed_rate
    line = " ".join(said.split())
    assert "and ratio 0, would compute" in line
    assert "where exact reuse computes" in line


def test_without_ratios_nothing_of_it_is_shown(tmp_path: Path):
    found, said = simulated(tmp_path)
    assert found.borrowing == ()
    assert "approximate" not in said


def test_the_command_takes_ratios_and_writes_the_figures(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"documents": ["a", "b"], "tokens": [100, 60]}\n{"documents": ["b", "a"]}\n')
    out = tmp_path / "out"
    asked = ["simulate", str(trace), "--capacity", "3200", "--policy", "lru"]
    assert main([*asked, "--recompute-ratio", "0", "0.25", "--output", str(out)]) == 0
    rows = json.loads((out / "simulate.json").read_text())["borrowing"]
    assert [row["ratio"] for row in rows] == [0, 0.25]
    with pytest.raises(SystemExit):
        main([*asked, "--recompute-ratio", "2"])
