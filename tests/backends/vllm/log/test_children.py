"""Each process of vLLM configures its logging as it starts, and then all it says goes into the file."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine.backends.vllm.log.children import write_logging_file
from ragcache_engine.backends.vllm.log.own_warnings import WarningReceiver

pytest.importorskip("vllm")

pytestmark = pytest.mark.vllm  # it runs no model, but loads vLLM, which takes as long


def speak(config: Any) -> None:
    """Begin as vLLM's processes do, and then log and print in every way."""
    from vllm.logger import configure_logging, init_logger

    configure_logging(config)
    init_logger("vllm.worker").info("loaded")
    print("printed")
    os.write(1, b"from C\n")
    os.write(2, b"and to the other\n")
    logging.getLogger("ragcache_engine.tiers").warning("the disk is full")


@pytest.mark.parametrize("method", ["spawn", "fork"])  # vLLM forks beside a GPU
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_all_that_a_process_says_is_in_the_file_and_our_warnings_come_back(
    method: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    from vllm.logger import configure_logging_if_needed

    from ragcache_engine.backends.vllm.log.logging_config import LoggingOfChildren

    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    log, settings = tmp_path / "vllm.log", tmp_path / "logging.json"
    receiver = WarningReceiver(tmp_path / "warnings")
    write_logging_file(settings, log=log, warnings=tmp_path / "warnings")
    config = LoggingOfChildren.reading(settings)
    before = logging.getLogger("vllm").handlers[:], logging.getLogger().handlers[:]
    configure_logging_if_needed(config)  # as vLLM does in the caller's process
    assert (logging.getLogger("vllm").handlers, logging.getLogger().handlers) == before
    assert not log.exists()

    capfd.readouterr()
    child = multiprocessing.get_context(method).Process(target=speak, args=(config,))
    child.start()
    child.join(120)
    receiver.close()
    assert child.exitcode == 0
    kept = log.read_text()
    for said in ("[vllm.worker] loaded", "printed", "from C", "and to the other"):
        assert kept.count(said) == 1, kept
    assert "the disk is full" in kept
    assert [one.getMessage() for one in caplog.records if "disk" in one.msg] == ["the disk is full"]
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "disk" not in shown.err


def test_on_a_machine_without_the_file_vllm_configures_nothing(tmp_path: Path):
    from ragcache_engine.backends.vllm.log.logging_config import LoggingOfChildren

    config = LoggingOfChildren.reading(tmp_path / "logging.json")
    config.maker = -1  # as another process sees it
    assert not config.configure_logging
    assert config.pylogging_config_file is None
    (tmp_path / "logging.json").touch()
    assert config.configure_logging
    assert config.pylogging_config_file == str(tmp_path / "logging.json")
