"""Brings what RAGCache's classes log in vLLM's processes back to the process that uses the engine.

There, the application's own logging configuration decides what becomes of it. Each record is one
message on a socket that only the user can reach.
"""

from __future__ import annotations

import json
import logging
import socket
from logging.handlers import DatagramHandler
from pathlib import Path
from threading import Thread

LOGGER = "ragcache_engine"
"""The name that the loggers of all our modules begin with."""

MOST_CHARACTERS = 16_000
"""The longest text to send; a message on the socket has a limit."""

SEND_TIMEOUT_S = 1.0


class WarningSender(DatagramHandler):
    """Sends records to the WarningReceiver at this address. The address is a path."""

    def __init__(self, address: str) -> None:
        super().__init__(address, None)

    def makeSocket(self) -> socket.socket:  # type: ignore[override]  # noqa: N802  # as logging has it
        made = super().makeSocket()
        made.settimeout(SEND_TIMEOUT_S)  # a scheduler must not wait for a stopped process
        return made

    def makePickle(self, record: logging.LogRecord) -> bytes:  # noqa: N802
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        fields = {
            "name": record.name,
            "levelno": record.levelno,
            "levelname": record.levelname,
            "msg": text[:MOST_CHARACTERS],
            "pathname": record.pathname,
            "filename": record.filename,
            "module": record.module,
            "funcName": record.funcName,
            "lineno": record.lineno,
            "created": record.created,
            "process": record.process,
            "processName": record.processName,
        }
        return json.dumps(fields).encode()


class WarningReceiver:
    """Hands the records that come in to the loggers of this process that have the records' names.

    address: the path of a socket that does not exist yet. Raises OSError if none can be made there.
    """

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(address))
        except OSError:
            self._socket.close()
            raise
        self._thread = Thread(target=self._receive, name="ragcache-warnings", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand over what has come in, and stop."""
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, once it has read all
        self._thread.join()
        self._socket.close()

    def _receive(self) -> None:
        while message := self._socket.recv(1 << 18):
            try:
                record = logging.makeLogRecord(json.loads(message))
                logger = logging.getLogger(record.name)
                if logger.isEnabledFor(record.levelno):
                    logger.handle(record)
            except Exception:
                logging.getLogger(LOGGER).exception("a warning of vLLM's processes is lost")
