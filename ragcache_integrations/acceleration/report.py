"""What one call of `accelerate` swapped, and what it left and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger("ragcache_integrations")


@dataclass(frozen=True, slots=True)
class SwappedPart:
    """A part that was swapped.

    place: the way to it, by the names of fields, such as "first.steps.context". before, after: what
      stood there, and what stands there now.
    """

    place: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"swapped {self.before} at {self.place} for {self.after}"


@dataclass(frozen=True, slots=True)
class LeftPart:
    """A retriever or a model that stays as it is.

    place: as in SwappedPart. is_wanted: the caller asked for it.
    """

    place: str
    part: str
    reason: str
    is_wanted: bool = False

    def __str__(self) -> str:
        return f"left {self.part} at {self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class AccelerationReport:
    """What `accelerate` did. `print(report)` shows a line for each part.

    Examples:
        >>> print(AccelerationReport((SwappedPart("last", "VLLM", "RAGCacheLLM"),)))
        accelerate swapped 1 part and left none
          swapped VLLM at last for RAGCacheLLM
    """

    swapped: tuple[SwappedPart, ...] = ()
    left: tuple[LeftPart, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether something was swapped, and nothing left that the caller did not ask to leave."""
        return bool(self.swapped) and all(part.is_wanted for part in self.left)

    def __str__(self) -> str:
        return "\n  ".join([self._head, *map(str, self.swapped), *map(str, self.left)])

    @property
    def in_one_line(self) -> str:
        """The report for a log, where an event has one line."""
        parts = "; ".join(map(str, (*self.swapped, *self.left)))
        line = f"{self._head}: {parts}" if parts else self._head
        return " ".join(line.split())  # a reason may be an error of several lines

    @property
    def _head(self) -> str:
        if not self.swapped and not self.left:
            return "accelerate found no retriever and no model to swap"
        count = len(self.swapped)
        return (
            f"accelerate swapped {count} part{'' if count == 1 else 's'} and left "
            f"{len(self.left) or 'none'}"
        )


def log_report(report: AccelerationReport) -> None:
    """Log the report: as a warning, which Python shows by default, if the caller should read it."""
    level = logging.INFO if report.is_complete else logging.WARNING
    logger.log(level, "%s", report.in_one_line)
