"""Tiny models of every kind answer the same with the tiers, or with vLLM's own cache and a warning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.program]

SERVED = ["multi-head", "grouped-query", "mixture-of-experts"]
REFUSED = {
    "sliding-window": "attends through a sliding window",
    "interleaved-windows": "attends through a sliding window",
    "hybrid": "keeps states that are no key-value tensors",
    "found-late": "keeps blocks of 2 kinds",
}


@pytest.fixture(scope="module")
def asked(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program tiny_models.py saw, by kind."""
    program = Path(__file__).with_name("tiny_models.py")
    kinds = [*SERVED, *REFUSED]
    done = subprocess.run(
        [sys.executable, program, tmp_path_factory.mktemp("models"), demo_model, *kinds],
        env={**os.environ, "PYTHONPATH": str(program.parents[3])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each["kind"]: each for each in seen}


@pytest.mark.parametrize("kind", SERVED)
def test_the_tiers_serve_models_with_full_attention(asked: dict[str, Any], kind: str):
    seen = asked[kind]
    assert seen["tiers"] == seen["stock"]
    assert not seen["warnings"]
    assert any(source["host"] for source in seen["sources"])


@pytest.mark.parametrize("kind", REFUSED)
def test_vllms_own_cache_serves_all_others(asked: dict[str, Any], kind: str):
    seen = asked[kind]
    assert seen["tiers"] == seen["stock"]
    assert any(REFUSED[kind] in text for text in seen["warnings"]), seen["warnings"]


@pytest.mark.parametrize("kind", [*SERVED, *REFUSED])
def test_the_answers_can_tell_a_mistake(asked: dict[str, Any], kind: str):
    assert len({tuple(answer) for answer in asked[kind]["stock"]}) > 1
