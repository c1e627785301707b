"""Processes that are there, and processes that should not outlive another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from threading import Thread

ORDERLY_END_S = 10.0
"""Left to a process to clean up in, before it is ended anyway."""


def is_alive(process: int) -> bool:
    """Whether a process of this number runs on this machine; True if it cannot be told."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def end_with_parent() -> None:
    """From now on this process ends when the one that started it is gone, however that came about.

    A process that is killed, as for want of memory, cannot end its children; vLLM's would keep the model
    and its caches in memory for ever. Does nothing in a process that multiprocessing has not started.
    """
    parent = multiprocessing.parent_process()
    if parent:
        Thread(target=_end_after, args=(parent,), name="ragcache-parent", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORDERLY_END_S)
    os._exit(1)
