"""Whether a process is still there."""

from __future__ import annotations

import os


def is_alive(process: int) -> bool:
    """Whether a process of this number runs on this machine; True if it cannot be told."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
