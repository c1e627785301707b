"""vLLM's logger in the caller's process, which an application may use and configure as well."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragcache_engine.backends.vllm.log.this_process import FileOfThisProcess

VLLM = logging.getLogger("vllm")


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """vLLM's logger as it is in a new process; afterwards again as the other tests had it."""
    before = VLLM.handlers[:], VLLM.level, VLLM.propagate
    VLLM.handlers[:], VLLM.propagate = [], True
    VLLM.setLevel(logging.NOTSET)
    yield
    VLLM.handlers[:], VLLM.propagate = before[0], before[2]
    VLLM.setLevel(before[1])


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    return tmp_path / "vllm.log"


def attached(log: Path) -> FileOfThisProcess:
    handler = FileOfThisProcess(log)
    handler.attach()
    return handler


def test_records_go_to_the_file_and_to_nobody_else(log: Path, caplog: pytest.LogCaptureFixture):
    handler = attached(log)
    logging.getLogger("vllm.config").info("chosen")
    handler.detach()
    assert "INFO MainProcess [vllm.config] chosen" in log.read_text()
    assert not caplog.records, "the application's own handlers hear nothing"


def test_afterwards_the_logger_is_as_it_was(log: Path, caplog: pytest.LogCaptureFixture):
    attached(log).detach()
    assert (VLLM.handlers, VLLM.level, VLLM.propagate) == ([], logging.NOTSET, True)
    logging.getLogger("vllm.config").warning("after")
    assert [record.getMessage() for record in caplog.records] == ["after"]


def test_a_logger_that_the_application_configured_keeps_what_it_has(log: Path):
    own = logging.NullHandler()
    VLLM.addHandler(own)
    VLLM.setLevel(logging.ERROR)
    handler = attached(log)
    assert own in VLLM.handlers
    assert VLLM.level == logging.ERROR
    handler.detach()
    assert VLLM.handlers == [own]
    assert (VLLM.level, VLLM.propagate) == (logging.ERROR, True)


def test_of_two_engines_the_one_closed_last_gives_the_logger_back(log: Path, tmp_path: Path):
    first, second = attached(log), attached(tmp_path / "second.log")
    first.detach()
    assert not VLLM.propagate
    VLLM.info("still kept")
    second.detach()
    assert (VLLM.handlers, VLLM.level, VLLM.propagate) == ([], logging.NOTSET, True)
    assert "still kept" in (tmp_path / "second.log").read_text()
    assert "still kept" not in log.read_text()


def test_what_the_application_configures_meanwhile_stays(log: Path):
    handler = attached(log)
    own = logging.NullHandler()
    VLLM.handlers[:] = [own]  # as dictConfig and vLLM's LLM class do
    VLLM.setLevel(logging.DEBUG)
    handler.detach()
    assert VLLM.handlers == [own]
    assert VLLM.level == logging.DEBUG


def test_vllms_own_variable_sets_the_level(log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "error")
    handler = attached(log)
    VLLM.info("too much")
    VLLM.error("just right")
    handler.detach()
    assert "too much" not in log.read_text()
    assert "just right" in log.read_text()
