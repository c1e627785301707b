"""Two workers share a model (tensor parallelism), and each copies its own half of every block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.program]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="each worker needs a core")
def test_answers_from_the_tiers_of_two_workers_are_those_computed(demo_model: str, tmp_path: Path):
    program = Path(__file__).with_name("two_workers.py")
    done = subprocess.run(
        [sys.executable, program, tmp_path, demo_model],
        env={**os.environ, "PYTHONPATH": str(program.parents[3])},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    seen = json.loads(line)
    assert seen["again"] == seen["first"]
    assert len({tuple(answer) for answer in seen["first"]}) > 1, "the answers can tell a mistake"
    assert sum(host + disk for _, host, disk in seen["sources"]) > 200
