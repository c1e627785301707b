"""Which replica has which request, and which have fallen silent, for the door and router of a process.

Ray tells of a replica that ended, at once. Of one whose host no longer answers it tells after a minute or
more; by then clients have given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
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
        self._assigned: dict[int, tuple[str, float] | None] = {}  # of the requests under way
        self._heard: dict[str, float] = {}
        self._silent: dict[str, float] = {}

    def begin(self) -> int:
        """Return the number of a new request."""
        number = next(self._numbers)
        self._assigned[number] = None
        return number

    def assign(self, number: int, replica: str) -> None:
        """Note which replica a request is sent to, most likely; again once the replica has said so."""
        if number in self._assigned:
            self._assigned[number] = replica, self._clock()

    def end(self, number: int) -> None:
        """Forget a request."""
        self._assigned.pop(number, None)

    def hear(self, number: int) -> None:
        """Note a sign of life from the replica that has this request."""
        if (assigned := self._assigned.get(number)) is not None:
            self._heard[assigned[0]] = self._clock()
            self._silent.pop(assigned[0], None)

    def is_overdue(self, number: int) -> bool:
        """Return whether a request was sent to a replica long ago. It may still wait for one."""
        assigned = self._assigned.get(number)
        return assigned is not None and self._clock() - assigned[1] > SILENT_S

    def note_silent(self, number: int) -> str:
        """Note that the replica that has this request shows no sign of life; return its name.

        Where another request has heard of it lately, it is not the one that is silent: Ray sends a
        request to the next one if the first is full.
        """
        assigned, now_s = self._assigned.get(number), self._clock()
        if assigned is None or now_s - self._heard.get(assigned[0], -SILENT_S) < SILENT_S:
            return ""
        self._silent[assigned[0]] = now_s
        return assigned[0]

    def is_silent(self, replica: str) -> bool:
        """Return whether a replica is to be avoided."""
        return self._clock() - self._silent.get(replica, -AVOIDED_S) < AVOIDED_S

    def keep_only(self, replicas: Collection[str]) -> None:
        """Forget all replicas but these."""
        self._heard = {name: at for name, at in self._heard.items() if name in replicas}
        self._silent = {name: at for name, at in self._silent.items() if name in replicas}


WATCH = ReplicaWatch()
"""Of this process: Ray makes the router, and has no way to give it one."""
