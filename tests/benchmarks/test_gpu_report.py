"""benchmarks/gpu_report.py: its parts on a CPU, its report, and what becomes of parts that fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("matplotlib")
pytest.importorskip("vllm")

import gpu_report
from gpu.report import PLACES, write_report
from gpu.run import Part, Run, carry_out

from ragcache_cli.machine import GPU

PROGRAM = gpu_report.__file__


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "gpu", is_cpu=True)
    run.forget()
    return run


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """Carries a part out by running the lines of Python that are its name."""
    file = tmp_path / "part.py"
    file.write_text("import sys, time\nexec(sys.argv[-1])\n")
    return [sys.executable, str(file)]


def rows_of(run: Run, what: str) -> list[dict[str, Any]]:
    return [row for row in run.rows() if row["what"] == what]


# -- the run -------------------------------------------------------------------------------------------


def test_a_part_that_fails_is_noted_with_its_error_and_the_next_one_runs(run: Run, program):
    assert not carry_out(run, Part("raise ValueError('no such kernel')", 60), 60, program)
    assert carry_out(run, Part("pass", 60), 60, program)
    (failed,) = rows_of(run, "failed")
    assert failed["errors"] == ["ValueError: no such kernel"]
    assert [row["name"] for row in rows_of(run, "done")] == ["pass"]


def test_a_part_that_takes_too_long_is_ended(run: Run, program):
    assert not carry_out(run, Part("time.sleep(60)", 1), 60, program)
    (failed,) = rows_of(run, "failed")
    assert failed["why"].startswith("was ended after")
    assert failed["seconds"] < 30


def test_parts_for_which_no_time_is_left_are_named(run: Run, program):
    assert not carry_out(run, Part("pass", 60), 5, program)
    assert [row["name"] for row in rows_of(run, "left out")] == ["pass"]


def start_with(run: Run, tmp_path: Path, lines: str) -> bool:
    file = tmp_path / "start.py"
    file.write_text(f"import json, pathlib, sys\npart = sys.argv[-1]\n{lines}")
    program = [sys.executable, str(file), str(run.out / "settings.json")]
    return gpu_report.Benchmark(run, 600, ["start"], program=program).start()


def test_a_start_takes_less_and_less_of_what_a_gpu_has_until_it_succeeds(tmp_path: Path):
    run = Run(tmp_path / "gpu", is_cpu=False)
    run.forget()
    works = (
        "sys.exit(part == 'start:vllm' and 'TRITON' not in pathlib.Path(sys.argv[1]).read_text())"
    )
    assert start_with(run, tmp_path, works)
    assert run.settings["arguments"] == {
        "enforce_eager": True,
        "attention_backend": "TRITON_ATTN",
    }
    assert run.vllm_args("bfloat16")["enforce_eager"]
    assert len(rows_of(run, "failed")) == 2


def test_where_nothing_starts_nothing_else_is_tried(tmp_path: Path):
    run = Run(tmp_path / "gpu", is_cpu=False)
    run.forget()
    assert not start_with(run, tmp_path, "sys.exit(part == 'start:vllm')")
    assert "No: nothing started." in write_report(run.rows(), run.out).read_text()


def test_a_new_run_removes_what_an_earlier_one_wrote_and_nothing_else(run: Run):
    run.emit("machine", device="CPU")
    (run.out / "mine.txt").write_text("keep")
    run.forget()
    assert not run.rows()
    assert (run.out / "mine.txt").exists()


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([], "no NVIDIA GPU here; --cpu tries all of it, small"),
        ([24], "28 GiB of GPU memory, 24 are free: give a smaller --model"),
        ([80], None),
    ],
)
def test_a_machine_that_is_too_small_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[int], said: str | None
):
    class Machine:
        def __init__(self) -> None:
            self.gpus = [GPU("H100", free << 30, free << 30) for free in gpus]

    monkeypatch.setattr(gpu_report, "this_machine", Machine)
    missing = gpu_report.missing_for(Run(tmp_path, is_cpu=False))
    assert missing is None if said is None else said in str(missing)


# -- the report ----------------------------------------------------------------------------------------

TTFT = {"prompt_tokens": 1000, "length": 900}
ROWS = [
    {"what": "machine", "part": "machine", "device": "H100", "to_device_gb_s": 55.0},
    {"what": "started", "system": "vLLM", "seconds": 40.0, "attention": "FLASH_ATTN"},
    {"what": "ttft", **TTFT, "place": "computed", "ttft_s": 0.300, "bytes": 0},
    {"what": "ttft", **TTFT, "place": "device", "ttft_s": 0.010, "bytes": 0},
    {"what": "ttft", **TTFT, "place": "host", "ttft_s": 0.012, "bytes": 100_000_000},
    {"what": "ttft", **TTFT, "place": "host", "ttft_s": 0.014, "bytes": 100_000_000},
    {"what": "ttft", **TTFT, "place": "borrowed, 0", "ttft_s": 0.030},
    *(
        {
            "what": "answers",
            "system": system,
            "dtype": "float32",
            "tokens": tokens,
            "margins": [[2.5, 2.0], [3.0, 0.125]] if system == "vLLM" else [],
            "device": 0.5,
            "host": 0.25,
            "disk": 0.0,
        }
        for system, tokens in (("vLLM", [[1, 2], [3, 4]]), ("RAGCache, first", [[1, 2], [3, 5]]))
    ),
    {
        "what": "stream",
        "system": "lru",
        "load": 1.0,
        "rate": 7.5,
        "unfinished": 1,
        "ttft_s": [0.1, 0.2, 0.3],
        "hit_share": 0.4,
    },
    {
        "what": "failed",
        "name": "stream:arc",
        "seconds": 75.0,
        "why": "was ended",
        "errors": ["x|y"],
    },
    {"what": "done", "name": "ttft", "seconds": 60.0},
]


def test_the_report_says_where_tokens_came_from_and_how_fast(tmp_path: Path):
    text = write_report(ROWS, tmp_path).read_text()
    assert "| 1,000 | 0.300 (0.300 to 0.300) | 0.010 (0.010 to 0.010) | " in text
    # 100 MB in the 3 ms that the host takes longer than the device.
    assert "0.013 (0.012 to 0.014), 33.33 GB/s" in text
    assert "| float32 | vLLM | 0 of 2 | median 2.25 | 50%, 25%, 0% |" in text
    assert "| float32 | RAGCache, first | 1 of 2 | 0.12 | 50%, 25%, 0% |" in text
    assert "| 1 | vLLM's host offload, LRU | 7.5 | 3 of 4 | 0.200 s | 0.200 s |" in text
    assert "**failed**: was ended x/y" in text
    assert (tmp_path / "ttft.png").stat().st_size > 10_000


def test_a_report_of_nothing_says_so(tmp_path: Path):
    text = write_report([], tmp_path).read_text()
    assert "No: nothing started." in text
    assert not (tmp_path / "ttft.png").exists()


# -- all of it -----------------------------------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.program
@pytest.mark.timeout(1800)
def test_parts_run_small_on_a_cpu(demo_model: str, tmp_path: Path):
    """Those that need all others' machinery; `make bench-gpu-try` runs the rest as well."""
    out = tmp_path / "gpu"
    words = [sys.executable, PROGRAM, "--cpu", "--out", str(out), "--only", "start", "ttft"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    run = Run(out, is_cpu=True)
    assert done.returncode == 0, rows_of(run, "failed")
    started = {row["system"]: row for row in rows_of(run, "started")}
    assert started["RAGCache"]["same_answer_again"]
    tiers = {place for place in PLACES if not place.startswith("borrowed")}
    assert {row["place"] for row in rows_of(run, "ttft")} == tiers
    assert (out / "ttft.png").exists()
