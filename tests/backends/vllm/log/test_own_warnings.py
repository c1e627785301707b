"""What RAGCache logs in vLLM's processes comes back to the application's loggers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ragcache_engine.backends.vllm.log.own_warnings import WarningReceiver, WarningSender


def send(address: Path, *messages: object, level: int = logging.WARNING) -> None:
    logger = logging.Logger("ragcache_engine.backends.vllm.tiers.spec")
    logger.addHandler(WarningSender(str(address)))
    for message in messages:
        logger.log(level, "the disk tier is off: %s", message)


def test_a_warning_arrives_at_the_logger_of_the_same_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    receiver = WarningReceiver(tmp_path / "warnings")
    send(tmp_path / "warnings", "no room", "50 %")
    receiver.close()
    assert [(one.name, one.levelname, one.getMessage()) for one in caplog.records] == [
        ("ragcache_engine.backends.vllm.tiers.spec", "WARNING", "the disk tier is off: no room"),
        ("ragcache_engine.backends.vllm.tiers.spec", "WARNING", "the disk tier is off: 50 %"),
    ]


def test_the_application_decides_what_it_wants_to_hear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR, "ragcache_engine")
    receiver = WarningReceiver(tmp_path / "warnings")
    send(tmp_path / "warnings", "not wanted")
    send(tmp_path / "warnings", "wanted", level=logging.ERROR)
    receiver.close()
    assert [one.getMessage() for one in caplog.records] == ["the disk tier is off: wanted"]


def test_a_very_long_warning_arrives_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    receiver = WarningReceiver(tmp_path / "warnings")
    send(tmp_path / "warnings", "ä" * 10_000_000)
    receiver.close()
    (one,) = caplog.records
    assert 1_000 < len(one.getMessage()) < 100_000


def test_nonsense_on_the_socket_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    import socket

    receiver = WarningReceiver(tmp_path / "warnings")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"\xff{", str(tmp_path / "warnings"))
    send(tmp_path / "warnings", "no room")
    receiver.close()
    assert caplog.records[-1].getMessage() == "the disk tier is off: no room"


def test_with_nobody_listening_a_warning_is_not_an_error_of_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    send(tmp_path / "nobody", "no room")
    assert "the disk tier is off" in capsys.readouterr().err, "logging itself says what is lost"
