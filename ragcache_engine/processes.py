"""Tells whether a process is alive, and ends a process together with its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from threading import Thread

ORDERLY_END_S = 10.0
"""How long a process may clean up before it is ended anyway."""


def is_alive(process: int) -> bool:
    """Return whether a process with this id runs on this machine; True if the system does not tell."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def end_with_parent() -> None:
    """End this process as soon as its parent is gone, whatever ended the parent.

    A parent that is killed, for example when memory runs out, cannot end its children. Then vLLM's
    processes would keep the model and its caches in memory for ever. Does nothing in a process that
    multiprocessing did not start.
    """
    parent = multiprocessing.parent_process()
    if parent:
        Thread(target=_end_after, args=(parent,), name="ragcache-parent", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORDERLY_END_S)
    os._exit(1)
