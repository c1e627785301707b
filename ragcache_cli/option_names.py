"""Says in the options of a command what the engine says in settings of Python."""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager

from ragcache_engine import EngineConfig

OTHER_NAMES = {
    "cost_profile": "profile",
    "request_timeout_s": "request_timeout",
    "vllm_args": "vllm_arg",
}
"""The settings of EngineConfig whose options have another name, as attributes of parsed arguments."""


def in_options(message: str, options: Container[str]) -> str:
    """Return the message with the command's options in place of settings of EngineConfig.

    options: names of the command's parsed arguments. A setting that is none of them keeps its name.
    """
    for setting in EngineConfig.model_fields:
        argument = OTHER_NAMES.get(setting, setting)
        if argument in options:
            message = _replace(message, setting, f"--{argument.replace('_', '-')}")
    return message


@contextmanager
def warn_in_options(options: Container[str]) -> Iterator[None]:
    """Print the engine's warnings on standard error, with the command's options as in `in_options`."""
    logger, handler = logging.getLogger("ragcache_engine"), logging.StreamHandler()
    handler.setFormatter(_OptionsFormatter(options))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _OptionsFormatter(logging.Formatter):
    def __init__(self, options: Container[str]) -> None:
        super().__init__()
        self._options = options

    def format(self, record: logging.LogRecord) -> str:
        return in_options(super().format(record), self._options)


def _replace(message: str, setting: str, option: str) -> str:
    message = re.sub(rf"EngineConfig\({setting}=\.\.\.\)", f"{option} ...", message)
    message = re.sub(rf"\b{setting}=([\"'])([^\"']*)\1", rf"{option} \2", message)
    message = re.sub(rf"\b{setting}=", f"{option} ", message)
    message = re.sub(rf"\bin {setting}\b", f"with {option}", message)
    if "_" in setting:
        return re.sub(rf"(?<![\w.-]){setting}(?![\w.])", option, message)
    # One word may be any word, unless it stands where only the name of a setting can.
    return re.sub(rf"^{setting}(?=:| is given)|(?<=\bleave ){setting}(?= out)", option, message)
