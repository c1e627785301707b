"""Puts everything that vLLM's processes log and print into the engine's log file.

vLLM configures the logging of each of its processes by a file that its configuration names
(LoggingConfig.pylogging_config_file). Ours names a handler of this module. So this module runs in each
process, before anything else that vLLM does there.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from ragcache_engine.backends.vllm.log.own_warnings import LOGGER, WarningSender
from ragcache_engine.backends.vllm.log.this_process import FORMAT, TIME_FORMAT, chosen_level


def write_logging_file(file: Path, *, log: Path, warnings: Path | None) -> None:
    """Write the configuration of Python's logging that vLLM's processes read.

    log: the engine's log file. warnings: where a WarningReceiver listens; None if there is none.
    """
    handler = {
        "class": f"{__name__}.{FileOfChild.__name__}",
        "path": str(log),
        "warnings": str(warnings) if warnings else None,
    }
    vllm = {"handlers": ["file"], "level": chosen_level(), "propagate": False}
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"file": handler},
        "loggers": {"vllm": vllm},
    }
    file.write_text(json.dumps(config), encoding="utf-8")


class FileOfChild(logging.FileHandler):
    """Appends records to the log file. Making it sends all other output of its process there, too.

    Only for processes that vLLM started.
    """

    def __init__(self, path: str, warnings: str | None) -> None:
        super().__init__(path, mode="a", encoding="utf-8")
        self.setFormatter(logging.Formatter(FORMAT, TIME_FORMAT))
        with open(path, "ab") as file:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
        # A fork of a notebook's kernel has streams that are no file.
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        if warnings:
            ours = logging.getLogger(LOGGER)
            ours.handlers[:] = [self, WarningSender(warnings)]
            ours.propagate = False  # a fork has the application's handlers as well
