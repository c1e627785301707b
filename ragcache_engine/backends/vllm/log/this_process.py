"""Keeps what vLLM logs in the caller's process out of sight, and puts it into a file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(processName)s [%(name)s] %(message)s"
TIME_FORMAT = "%H:%M:%S"
LEVEL_VARIABLE = "VLLM_LOGGING_LEVEL"


def chosen_level() -> str:
    """Return the level of vLLM's log: the one that vLLM's own variable names, or INFO."""
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    return level if level in logging.getLevelNamesMapping() else "INFO"


class FileOfThisProcess(logging.FileHandler):
    """Writes the records of vLLM's logger to a file while it is attached.

    A logger that nobody has configured belongs to the handler: nothing is shown meanwhile. One that the
    application has configured keeps its handlers and its level, and the file gets a copy. dictConfig
    and vLLM's own LLM class may configure it later and remove this handler; that stays.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="a", encoding="utf-8")
        self.setFormatter(logging.Formatter(FORMAT, TIME_FORMAT))
        self._owns_logger = False

    def attach(self) -> None:
        """Begin to write."""
        logger = _vllm_logger()
        if not logger.handlers and logger.level == logging.NOTSET and logger.propagate:
            self._owns_logger = True
            logger.setLevel(chosen_level())
            logger.propagate = False
        logger.addHandler(self)

    def detach(self) -> None:
        """Stop writing, and leave the logger as it was."""
        logger = _vllm_logger()
        is_attached = self in logger.handlers
        logger.removeHandler(self)
        others = [one for one in logger.handlers if isinstance(one, FileOfThisProcess)]
        if self._owns_logger and is_attached:
            if others:  # of another engine, which is closed later
                others[0]._owns_logger = True
            else:
                logger.setLevel(logging.NOTSET)
                logger.propagate = True
        self._owns_logger = False
        self.close()


def _vllm_logger() -> logging.Logger:
    return logging.getLogger("vllm")
