"""Which replica has which request, and which have fallen silent, for the door and router of a process.

Ray tells of a replica that ended, at once. Of one whose host no longer answers it tells after a minute or
more; by then clients have given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

BEAT_S = 3.0
"""A replica shows a sign of life at least so often while it has a request."""

SILENT_S = 20.0
"""A replica that has a request and shows none for so long is taken for lost."""

AVOIDED_S = 30.0
"""So long a silent replica gets requests only where no other takes them, or until it is heard of."""


class ReplicaWatch:
    """What a door and its router tell each other. Any thread may call its methods."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._numbers = count(1)
        self._assigned: dict[int, tuple[str, float]] = {}
        self._silent: dict[str, float] = {}

    def begin(self) -> int:
        """Return the number of a new request."""
        return next(self._numbers)

    def assign(self, number: int, replica: str) -> None:
        """Note which replica a request was sent to."""
        self._assigned[number] = replica, self._clock()

    def end(self, number: int) -> None:
        """Forget a request."""
        self._assigned.pop(number, None)

    def hear(self, number: int) -> None:
        """Note a sign of life from the replica that has this request."""
        if self._silent and number in self._assigned:
            self._silent.pop(self._assigned[number][0], None)

    def is_overdue(self, number: int) -> bool:
        """Return whether a request was sent to a replica long ago. It may still wait for one."""
        return number in self._assigned and (self._clock() - self._assigned[number][1] > SILENT_S)

    def note_silent(self, number: int) -> str:
        """Note that the replica that has this request shows no sign of life; return its name."""
        name = self._assigned[number][0] if number in self._assigned else ""
        if name:
            self._silent[name] = self._clock()
        return name

    def is_silent(self, replica: str) -> bool:
        """Return whether a replica is to be avoided."""
        return self._clock() - self._silent.get(replica, -AVOIDED_S) < AVOIDED_S


WATCH = ReplicaWatch()
"""Of this process: Ray makes the router, and has no way to give it one."""
