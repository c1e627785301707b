"""The scripts of examples/, each in a process of its own, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 240

pytestmark = [pytest.mark.vllm, pytest.mark.program, pytest.mark.timeout(300)]


@pytest.fixture
def run(demo_model: str):
    """(script, arguments) -> what it prints. It finds no network: hubs are told to stay offline."""
    for module in ("faiss", "langchain_core", "sentence_transformers"):
        pytest.importorskip(module)

    def run_script(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_OFFLINE": "1",
                "PYTHONPATH": str(EXAMPLES.parent),  # this copy, whichever is installed
            },
            cwd=EXAMPLES.parent,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run_script


def numbers(line: str) -> list[float]:
    return [
        float(found.replace(",", "")) for found in re.findall(r"(?<![\w.])[\d,]+(?:\.\d+)?", line)
    ]


def rows_after(heading: str, printed: str, count: int) -> list[list[float]]:
    lines = printed[printed.index(heading) :].splitlines()
    return [numbers(line) for line in lines[2 : 2 + count]]


def test_a_folder_of_ones_own_is_asked_and_the_second_asking_finds_everything_cached(run, tmp_path):
    (tmp_path / "moon.md").write_text(
        "# Tides\n\n" + "The tides follow the moon, twice a day. " * 20
    )
    (tmp_path / "bread.txt").write_text("Bread rises when yeast eats the sugar of the flour. " * 16)
    printed = run("own_folder.py", str(tmp_path), "What do the tides follow?")
    cold, again = re.findall(r"; ([\d,]+) of ([\d,]+) prompt tokens cached", printed)
    assert int(cold[0]) == 0
    assert int(again[0].replace(",", "")) > 0.8 * int(again[1].replace(",", ""))
    said = re.findall(
        r"\[(?:cold|again)\] What do the tides follow\?\n(.*?)\n  first", printed, re.S
    )
    assert said[0] == said[1] != ""


def test_the_engine_alone_keeps_forgets_and_comes_back_from_disk(run):
    printed = run("engine_alone.py")
    first = rows_after("A new engine", printed, 4)
    second = rows_after("The same questions again", printed, 4)
    third = rows_after("The engine is closed", printed, 4)
    assert all(device + host + disk == 0 for *_, device, host, disk in first)
    for ttft_s, prompt, device, host, disk in second:
        assert device + host + disk > 0.8 * prompt, (ttft_s, prompt)
    assert sum(host for *_, host, _ in second) > 0
    assert sum(disk for *_, disk in third) > 0.5 * sum(row[1] for row in third)
    ((_, prompt, *cached),) = rows_after("Forgot", "Forgot\n" + printed.partition("Forgot")[2], 1)
    assert sum(cached) < 0.5 * prompt


def test_many_at_once_share_what_their_tenant_computed_and_a_leaver_is_cancelled(run):
    printed = run("many_at_once.py")
    later = rows_after("Other questions", printed, 6)
    assert all(cached > 0.5 * prompt for _, _, prompt, cached, *_ in later)
    first = rows_after("The first question", printed, 6)
    assert all(cached < 0.2 * prompt for _, _, prompt, cached, *_ in first)
    assert "read 5 pieces; 1 request cancelled, 0 running" in printed
