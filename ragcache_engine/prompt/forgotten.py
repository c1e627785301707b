"""When which documents were forgotten, so that a prompt planned before brings none of them back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

MOST_REMEMBERED = 65_536
"""So many forgotten documents are remembered by name."""


class ForgetLog:
    """Remembers the moments at which documents were forgotten. Any thread may call its methods.

    moment: how often documents were forgotten so far. Whoever plans a prompt notes it when the prompt's
      documents are found.
    """

    def __init__(self) -> None:
        self.moment = 0
        self._forgotten: OrderedDict[str, int] = OrderedDict()
        self._unremembered = 0  # the last moment of those that are remembered no more
        self._lock = Lock()

    def note(self, document_ids: Iterable[str]) -> None:
        """Note that these documents are forgotten from now on."""
        with self._lock:
            self.moment += 1
            for name in document_ids:
                self._forgotten[name] = self.moment
                self._forgotten.move_to_end(name)
            while len(self._forgotten) > MOST_REMEMBERED:
                _, self._unremembered = self._forgotten.popitem(last=False)

    def since(self, moment: int, document_ids: Iterable[str]) -> tuple[str, ...]:
        """Return those of these documents that were forgotten after a moment.

        Of very old moments it may return more: documents that were never forgotten.
        """
        if moment == self.moment:
            return ()
        with self._lock:
            times = self._forgotten
            return tuple(
                name
                for name in dict.fromkeys(document_ids)
                if times.get(name, self._unremembered) > moment
            )
