"""benchmarks/soak.py: a short soak without a model, in two pieces, and what its report calls failed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from soaking.callers import Tally
from soaking.report import Piece, failures, read_pieces, report, together
from soaking.workload import make_asks

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def run(out: Path, requests: int) -> subprocess.CompletedProcess[str]:
    arguments = ["--backend", "memory", "--minutes", "1", "--prompts", "40", "--callers", "8"]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--requests", str(requests), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> list[Piece]:
    out = tmp_path_factory.mktemp("soak") / "run"
    for requests in (60, 100):
        done = run(out, requests)
        assert (out / "report.md").is_file(), done.stderr[-2000:]
    return read_pieces(out)


def test_each_piece_goes_on_where_the_last_one_stopped(pieces: list[Piece]):
    assert [piece.number for piece in pieces] == [1, 2]
    assert pieces[0].seed != pieces[1].seed
    assert together(pieces).requests >= 90  # forgetting some document is a turn, but no request


def test_the_answers_are_those_without_a_cache_though_much_was_cached(pieces: list[Piece]):
    whole = together(pieces)
    assert whole.wrong == 0, whole.notes
    assert not whole.errors, whole.notes
    assert sum(whole.cached_tokens.values()) > 0


def test_one_seed_makes_the_same_prompts_and_private_documents_stand_in_no_shared_prompt():
    shared, private = make_asks(30, 4, seed=3)
    assert make_asks(30, 4, seed=3) == (shared, private)
    assert len({ask.prompt for ask in shared}) == 30
    texts = [ask.documents[0].text for ask in private]
    assert not any(text in ask.prompt for text in texts for ask in shared)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"wrong": 1}, "1 answers differ"),
        ({"remembered": 2}, "2 forgotten documents"),
        ({"hangs": 1}, "1 requests timed out"),
        ({"errors": {"EngineDied": 3}}, "3 errors"),
    ],
)
def test_what_must_not_happen_fails_the_soak(pieces: list[Piece], changes, said: str):
    piece = replace(pieces[0], tally=replace(Tally(), **changes))
    assert any(line.startswith(said) for line in failures([piece]))
    assert "**Failed.**" in "\n".join(report([piece]))


def test_what_outlives_the_engine_fails_the_soak(pieces: list[Piece]):
    piece = replace(
        pieces[0], tally=Tally(), left_processes=1, left_shared_memory=["vllm_offload_x"]
    )
    assert failures([piece])[-2:] == ["1 processes outlived the engine", "1 files left in /dev/shm"]
    queues = replace(
        piece, left_processes=0, left_shared_memory=["psm_1", "sem.mp-1"], faults={"kill": 1}
    )
    assert failures([queues]) == failures([replace(queues, left_shared_memory=[])])
