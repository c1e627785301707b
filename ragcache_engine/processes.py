"""What vLLM's processes owe the process that started them: to end with it, and to leave Ctrl-C to it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from threading import Thread
from types import FrameType

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


def ignore_interrupts() -> None:
    """Make this process ignore Ctrl-C, which is meant for the process that started it.

    A terminal sends SIGINT to all processes of a group, and so does Jupyter. The parent catches it and
    goes on, so its children must go on as well. SIGTERM still ends them. Does nothing in a process that
    multiprocessing did not start. Must be called after whoever else sets the handler, on the main thread.
    """
    if _may_set_handlers():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def end_on_interrupt() -> Iterator[None]:
    """Raise SystemExit at Ctrl-C within this block, in a process that multiprocessing started.

    For work that nobody wants any more once the user has pressed Ctrl-C, such as loading a model.
    """
    if not _may_set_handlers():
        yield
        return

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(f"interrupted by {signal.Signals(signum).name}")

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _may_set_handlers() -> bool:
    """Return whether this is the main thread of a child: Python sets handlers on no other thread."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    return multiprocessing.parent_process() is not None and is_main_thread


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORDERLY_END_S)
    os._exit(1)
