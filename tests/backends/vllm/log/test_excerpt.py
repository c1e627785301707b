"""What an error quotes of vLLM's log."""

from __future__ import annotations

from pathlib import Path

from ragcache_engine.backends.vllm.log.excerpt import LAST_LINES, quote_cause

TWO_ERRORS = """\
12:00:00 INFO EngineCore [vllm.v1.engine.core] Initializing a V1 LLM engine
12:00:01 ERROR VllmWorker-0 [vllm.v1.executor.multiproc_executor] WorkerProc failed to start.
Traceback (most recent call last):
  File "weight_utils.py", line 1, in load
    raise SafetensorError
safetensors_rust.SafetensorError: Error while deserializing header:
incomplete metadata
12:00:02 ERROR EngineCore [vllm.v1.engine.core] EngineCore failed to start.
Traceback (most recent call last):
  File "core.py", line 1, in run
Exception: WorkerProc initialization failed. See stack trace for root cause.
"""


def quote(folder: Path, text: str, since_bytes: int = 0) -> list[str]:
    path = folder / "vllm.log"
    path.write_text(text)
    return quote_cause(path, since_bytes)


def test_the_first_error_is_the_cause_of_those_that_follow(tmp_path: Path):
    assert quote(tmp_path, TWO_ERRORS) == [
        "safetensors_rust.SafetensorError: Error while deserializing header:",
        "incomplete metadata",
    ]


def test_errors_of_an_earlier_start_are_not_the_cause(tmp_path: Path):
    again = TWO_ERRORS + "MemoryError\n"
    assert quote(tmp_path, again, since_bytes=len(TWO_ERRORS)) == ["MemoryError"]


def test_without_an_error_the_last_lines_are_quoted(tmp_path: Path):
    lines = [f"12:00:{number:02} INFO EngineCore [vllm] step {number}" for number in range(60)]
    assert quote(tmp_path, "\n\n".join(lines)) == lines[-LAST_LINES:]


def test_a_line_that_only_mentions_an_error_is_none(tmp_path: Path):
    line = "12:00:00 WARNING EngineCore [vllm] ValueError: this was handled"
    assert quote(tmp_path, f"{line}\n{line}\n") == [line, line]


def test_a_huge_line_is_cut_and_bytes_that_are_no_text_are_replaced(tmp_path: Path):
    path = tmp_path / "vllm.log"
    path.write_bytes(b"\xff" * 100_000)
    (line,) = quote_cause(path)
    assert len(line) < 1000


def test_a_log_that_is_gone_quotes_nothing(tmp_path: Path):
    assert quote_cause(tmp_path / "gone.log") == []
