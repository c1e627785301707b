"""`ragcache simulate --replicas`: a row for each fleet and routing, a picture, and the figures."""

from __future__ import annotations

import json

import pytest

from ragcache_cli.main import main


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        json.dumps({"documents": [f"d{n % 30}", f"d{(3 * n) % 30}"], "tokens": [100, 100]})
        for n in range(1, 120)
        if n % 30 != (3 * n) % 30
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_fleet_and_routing_has_its_row(trace, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "out"
    arguments = ["--replicas", "1", "4", "--routing", "documents", "random", "two-choices"]
    arguments += ["--capacity", "20%"]
    assert main(["simulate", str(trace), *arguments, "--output", str(out)]) == 0
    rows = json.loads((out / "fleet.json").read_text())
    assert [(row["replicas"], row["routing"]) for row in rows] == [
        (1, "documents"),
        (1, "random"),
        (1, "two-choices"),
        (4, "documents"),
        (4, "random"),
        (4, "two-choices"),
    ]
    assert [row["lost"] is None for row in rows] == [True] * 3 + [False] * 3
    assert rows[3]["whole"]["hit_rate"] > rows[4]["whole"]["hit_rate"]
    assert (out / "fleet.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "documents" in said
    assert "…" not in said, "a table that a terminal of 80 columns shows whole"
    assert "600" in said  # 20% of 30 documents of 100 tokens


def test_requests_are_drawn_for_each_replica(trace, tmp_path):
    arguments = ["--replicas", "3", "--requests", "50", "--routing", "documents"]
    assert main(["simulate", str(trace), *arguments, "--output", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "fleet.json").read_text())
    assert row["whole"]["requests"] == 150


def test_a_fleet_without_load_is_refused(trace, tmp_path, capsys):
    assert main(["simulate", str(trace), "--replicas", "2", "--load", "0"]) != 0
    assert "--load" in capsys.readouterr().err
