"""`ragcache demo` with the real models, in a process of its own, as a newcomer runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_lines import foreign_lines

for module in ("faiss", "langchain_community", "matplotlib", "sentence_transformers", "vllm"):
    pytest.importorskip(module)

pytestmark = [pytest.mark.vllm, pytest.mark.program, pytest.mark.timeout(600)]


@pytest.fixture
def home(demo_model: str) -> Iterator[Path]:
    """A cache home without tensors of earlier runs; what the demo writes there is large."""
    with tempfile.TemporaryDirectory(prefix="ragcache-demo-") as folder:
        (Path(folder) / "models").symlink_to(Path(demo_model).parent)
        yield Path(folder)


def test_two_questions_are_answered_three_ways_and_nothing_else_is_on_the_terminal(
    home: Path, tmp_path: Path
):
    # The test's own settings quieten vLLM; a user has none.
    user = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    command = ["demo", "--first", "2", "--max-tokens", "6", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "ragcache_cli", *command],
        capture_output=True,
        text=True,
        timeout=580,
        env={
            **user,
            "RAGCACHE_HOME": str(home),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "COLUMNS": "1000",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr == ""
    assert foreign_lines(done.stdout) == []

    figures = json.loads((tmp_path / "demo.json").read_text())
    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")
    new, again = figures["rounds"]
    stock, exact, anywhere = new["runs"]
    assert exact["same_answers_as_stock"] == len(stock["asked"]) == 2
    assert stock["reused_share"] < exact["reused_share"] < anywhere["reused_share"]
    assert anywhere["reused_share"] > 0.6
    assert again["runs"][1]["reused_share"] > 0.9
    borrowed = [one for one in anywhere["asked"][0]["passages"] if one["borrowed"]]
    assert len(borrowed) == 4
    assert any(one["tier"] for one in borrowed), "they were prefilled before the questions"


def test_questions_of_ones_own_are_asked_of_ones_own_files(home: Path, tmp_path: Path):
    corpus = tmp_path / "fruit"
    corpus.mkdir()
    for name in ("apples", "pears", "plums", "figs"):
        (corpus / f"{name}.txt").write_text(
            f"All that is known about {name}: they grow on trees. " * 9
        )
    questions = tmp_path / "log.txt"
    too_long = "Where do figs grow? " * 2000
    questions.write_text(f"Where do apples grow?\n{too_long}\nWhere do plums grow?\n")
    command = ["demo", "--corpus", str(corpus), "--questions", str(questions), "--max-tokens", "6"]
    done = subprocess.run(
        [sys.executable, "-m", "ragcache_cli", *command, "--output", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=580,
        env={
            **os.environ,
            "RAGCACHE_HOME": str(home),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "left out 1 of 3 questions" in done.stdout
    assert "With your own files" not in done.stdout
    assert "Equal: 3 of 3 exact answers" in " ".join(
        (tmp_path / "out" / "report.txt").read_text().split()
    )
    figures = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert figures["settings"]["passage_tokens"] == 400
    stock, exact, anywhere = figures["rounds"][0]["runs"]
    assert exact["same_answers_as_stock"] == len(stock["asked"]) == 2
    assert anywhere["reused_share"] > exact["reused_share"]
