"""vLLM's configuration of logging, for an engine that keeps vLLM's log in a file. Needs vLLM."""

from __future__ import annotations

import os
from pathlib import Path

from vllm.config.logging import LoggingConfig


class LoggingOfChildren(LoggingConfig):
    """Configures the logging of vLLM's processes, and not that of the process that made it.

    vLLM would configure both in the same way. In the caller's process that closes the handlers of all
    loggers, the application's own among them.
    """

    file: str
    maker: int

    @classmethod
    def reading(cls, file: Path) -> LoggingOfChildren:
        """Make one that has vLLM's processes read this file of logging.config.dictConfig."""
        made = cls()
        made.file, made.maker = str(file), os.getpid()
        return made

    @property
    def configure_logging(self) -> bool:  # type: ignore[override]
        """Whether vLLM is to configure the logging of the process that asks.

        Not on other machines, on which vLLM may have workers: the file is not there.
        """
        is_maker = os.getpid() == getattr(self, "maker", os.getpid())
        return not is_maker and os.path.exists(self.file)

    @property
    def pylogging_config_file(self) -> str | None:  # type: ignore[override]
        """The file to read; None where nothing is to be configured."""
        return self.file if self.configure_logging else None
