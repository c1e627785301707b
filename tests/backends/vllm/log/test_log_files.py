"""The files that keep vLLM's log."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ragcache_engine.backends.vllm.log.log_files import KEPT_FILES, create_log_file

ENDED_PROCESS = 2**22 + 1
"""Above the largest id that Linux gives a process."""


def test_each_engine_gets_a_file_of_its_own_that_only_its_owner_reads(tmp_path: Path):
    first, second = create_log_file(tmp_path), create_log_file(tmp_path)
    assert first != second
    assert first.parent == second.parent == tmp_path
    assert stat.S_IMODE(first.stat().st_mode) == 0o600


def test_it_lies_where_everything_of_ours_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    assert create_log_file().parent == tmp_path / "logs"


def test_a_folder_that_is_not_there_is_made(tmp_path: Path):
    assert create_log_file(tmp_path / "a" / "b").parent == tmp_path / "a" / "b"


def test_where_the_folder_cannot_be_written_the_file_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    (tmp_path / "a file").touch()
    assert create_log_file(tmp_path / "a file").parent == elsewhere


def test_of_engines_that_ended_the_latest_files_stay(tmp_path: Path):
    for number in range(30):
        (tmp_path / f"vllm-20260101-0000{number:02}-{ENDED_PROCESS}-x.log").touch()
    created = create_log_file(tmp_path)
    earlier = sorted(set(tmp_path.iterdir()) - {created})
    assert [path.name[14:18] for path in earlier] == ["0000"] * KEPT_FILES
    assert earlier[-1].name[18:20] == "29"


def test_files_of_running_engines_and_other_files_stay(tmp_path: Path):
    running = [tmp_path / f"vllm-20200101-0000{n:02}-{os.getpid()}-x.log" for n in range(30)]
    other = tmp_path / "last-run.log"
    for path in (*running, other):
        path.touch()
    create_log_file(tmp_path)
    assert all(path.exists() for path in (*running, other))
