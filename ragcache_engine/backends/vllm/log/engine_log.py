"""Keeps the log of one engine's vLLM, in a file or in vLLM's own way."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ragcache_engine.backends.vllm.log.children import write_logging_file
from ragcache_engine.backends.vllm.log.excerpt import quote_cause
from ragcache_engine.backends.vllm.log.log_files import create_log_file
from ragcache_engine.backends.vllm.log.own_warnings import WarningReceiver
from ragcache_engine.backends.vllm.log.spawning import InheritedFile, redirecting_from_the_start
from ragcache_engine.backends.vllm.log.this_process import FileOfThisProcess

if TYPE_CHECKING:
    from vllm.config import VllmConfig

OWN_LOGGING_ARGUMENTS = frozenset({"logging_config", "log_config_file", "log_level"})
OWN_LOGGING_VARIABLE = "VLLM_LOGGING_CONFIG_PATH"
DESCRIPTORS_FROM = 64
"""The least number of the log file's descriptor, above those that a shell takes for itself."""


class EngineLog(Protocol):
    """What a backend needs of vLLM's log."""

    def open(self) -> None:
        """Begin to keep what vLLM logs in this process. Does nothing if that has begun."""

    def arguments(self) -> dict[str, Any]:
        """Return what to add to vLLM's arguments."""

    @contextmanager
    def starting(self, model: str, config: VllmConfig) -> Iterator[None]:
        """Keep what vLLM's processes print while they start."""

    def describe_end(self) -> str:
        """Say why vLLM's processes ended, as far as the log tells, and where the log is."""

    def close(self) -> None:
        """Stop. `open` begins anew."""


def choose_log(wanted: str, vllm_args: Mapping[str, Any]) -> EngineLog:
    """Return the log for `EngineConfig.vllm_log`. Who configures vLLM's logging himself has his way."""
    if wanted == "show" or OWN_LOGGING_ARGUMENTS & set(vllm_args):
        return ShownLog()
    return ShownLog() if os.environ.get(OWN_LOGGING_VARIABLE) else FileLog()


class ShownLog:
    """vLLM logs as it does by itself."""

    def open(self) -> None:
        """Do nothing."""

    def arguments(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    @contextmanager
    def starting(self, model: str, config: VllmConfig) -> Iterator[None]:
        """Change nothing."""
        yield

    def describe_end(self) -> str:
        """Say where the log is."""
        return "vLLM's log above holds the cause; VLLM_LOGGING_LEVEL=INFO tells more."

    def close(self) -> None:
        """Do nothing."""


class FileLog:
    """Everything that vLLM's processes log and print goes into one file, restarts included.

    What RAGCache's own classes log in these processes comes back to this process.
    folder: where the file is made; None: with those of other engines.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.path: Path | None = None
        self._handler: FileOfThisProcess | None = None
        self._warnings: WarningReceiver | None = None
        self._exchange: Path | None = None
        self._since_bytes = 0

    def open(self) -> None:
        """Create the file if there is none yet, and begin to write it."""
        if self._handler:
            return
        if self.path is None:
            self.path = create_log_file(self._folder)
        self._handler = FileOfThisProcess(self.path)
        self._handler.attach()
        self._exchange, self._warnings = _open_exchange()
        write_logging_file(
            self._exchange / "logging.json",
            log=self.path,
            warnings=self._exchange / "warnings" if self._warnings else None,
        )

    def arguments(self) -> dict[str, Any]:
        """Return the argument that configures the logging of vLLM's processes."""
        from ragcache_engine.backends.vllm.log.logging_config import LoggingOfChildren

        assert self._exchange is not None, "open() comes first"
        return {"logging_config": LoggingOfChildren.reading(self._exchange / "logging.json")}

    @contextmanager
    def starting(self, model: str, config: VllmConfig) -> Iterator[None]:
        """Announce the model, and keep what its processes print before they configure their logging."""
        assert self.path is not None, "open() comes first"
        announce_loading(model, self.path)
        self._since_bytes = self._size_bytes()
        with self._passed_file() as descriptor:
            if config.kv_transfer_config is not None:
                extra = config.kv_transfer_config.kv_connector_extra_config
                extra["ragcache_log"] = InheritedFile(descriptor)
            with redirecting_from_the_start(self.path, descriptor):
                yield
        self._since_bytes = self._size_bytes()

    def describe_end(self) -> str:
        """Quote the log's first error since the last start, or its last lines."""
        if self.path is None:
            return ""
        lines = quote_cause(self.path, self._since_bytes) or ["(vLLM wrote nothing more)"]
        quoted = "".join(f"\n    {line}" for line in lines)
        return f"vLLM's log, {self.path}, says:{quoted}"

    def close(self) -> None:
        """Stop writing; the file stays."""
        if self._handler:
            self._handler.detach()
            self._handler = None
        if self._warnings:
            self._warnings.close()
            self._warnings = None
        if self._exchange:
            shutil.rmtree(self._exchange, ignore_errors=True)
            self._exchange = None

    def _size_bytes(self) -> int:
        try:
            return self.path.stat().st_size if self.path else 0
        except OSError:
            return 0

    @contextmanager
    def _passed_file(self) -> Iterator[int]:
        """Open the file under a high number, for a new process to inherit."""
        import fcntl

        assert self.path is not None
        with self.path.open("ab") as file:
            descriptor = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, DESCRIPTORS_FROM)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _open_exchange() -> tuple[Path, WarningReceiver | None]:
    """Make a folder that only the user reads, with a socket that receives warnings in it.

    The path of a socket is short, so a long TMPDIR cannot hold one; then /tmp does.
    """
    for place in (None, "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix="ragcache-", dir=place))
        try:
            return folder, WarningReceiver(folder / "warnings")
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="ragcache-")), None


def announce_loading(model: str, log: Path) -> None:
    """Tell the user on standard error that a model is being loaded.

    model: a hub id, or the path of a folder, of which the line has the name alone.
    """
    if sys.stderr is not None:  # a program without a terminal may have none
        name = Path(model).name if Path(model).is_dir() else model
        print(f"RAGCache: vLLM loads {name}; its log: {log}", file=sys.stderr, flush=True)
