"""Keep the messages of other libraries off the terminal, and let vLLM use both cores of a small machine.

Variables that the user has set stay as they are: `VLLM_LOGGING_LEVEL=INFO ragcache demo` shows vLLM's
log.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",  # for the processes that vLLM starts
}
KEPT_FROM_SERVERS = frozenset(QUIET) - {
    "VLLM_NO_USAGE_STATS",
    "HF_HUB_DISABLE_TELEMETRY",
    "TOKENIZERS_PARALLELISM",
}
"""What would make a server quiet, whose log belongs on its terminal."""
CHOSEN = "RAGCACHE_CHOSEN_VARIABLES"
"""Names the variables that `silence_libraries` has set, also for the processes that this one starts."""
FEW_CORES = 2


def is_log_level_ours(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether the user left the choice of vLLM's log level to this program."""
    return environment.get("VLLM_LOGGING_LEVEL", QUIET["VLLM_LOGGING_LEVEL"]) == "ERROR"


def silence_libraries(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that make libraries quiet, as far as the user has not set them.

    Call this before anything imports vLLM or transformers: they read the variables once.
    """
    chosen = [name for name in QUIET if name not in environment]
    environment.update((name, QUIET[name]) for name in chosen)
    environment[CHOSEN] = " ".join([*environment.get(CHOSEN, "").split(), *chosen])
    if (os.cpu_count() or 1) <= FEW_CORES:
        # vLLM keeps one core free for its front end: half of a machine with two. With that core, 1,000
        # tokens of prefill take 0.9 s instead of 1.7 s on two cores.
        environment.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    # This logger warns of a missing GPU before vLLM's own log level takes effect.
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.filterwarnings("ignore")


def let_libraries_speak(environment: MutableMapping[str, str] = os.environ) -> None:
    """Take back what `silence_libraries` has set, before this process starts or becomes a server."""
    for name in KEPT_FROM_SERVERS.intersection(environment.pop(CHOSEN, "").split()):
        environment.pop(name, None)


@contextmanager
def send_stderr_to(log: Path) -> Iterator[Path | None]:
    """Redirect file descriptor 2 to a file, because C++ libraries and vLLM's processes print there.

    sys.stderr still reaches the terminal. Yields the file, or None if it cannot be written: then nothing
    is redirected.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("wb", buffering=0)
    except OSError:
        yield None
        return
    python_stderr, terminal = sys.stderr, os.dup(2)
    try:
        with file, open(terminal, "w", buffering=1, closefd=False) as through:
            with suppress(io.UnsupportedOperation, AttributeError):
                if python_stderr.fileno() == 2:
                    sys.stderr = through
            os.dup2(file.fileno(), 2)
            yield log
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        sys.stderr = python_stderr
