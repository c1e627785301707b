"""What the user sees while waiting: a spinner with the time, then how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)

Done = Callable[[int, int], None]
"""Called with how many are done, of how many."""


class _KnownBar(BarColumn):
    """A bar once it is known how much there is to do; the spinner is enough before."""

    def render(self, task: Task) -> RenderableType:  # type: ignore[override]  # a bar or nothing
        return super().render(task) if task.total else ""


@dataclass(slots=True)
class Phases:
    """Times the phases of a command and shows the one that runs. Seconds by title, in order."""

    console: Console
    now: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def waiting(self, title: str) -> Iterator[Done]:
        """A phase that shows nothing itself: a spinner with the elapsed time stands in for it.

        The block may call what it is given to turn the spinner into a bar.
        """
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            _KnownBar(bar_width=24),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        task = progress.add_task(title, total=None)

        def done(count: int, total: int) -> None:
            progress.update(task, completed=count, total=total)

        with self.timed(title), progress:
            yield done

    @contextmanager
    def timed(self, title: str) -> Iterator[None]:
        """A phase that writes to the terminal by itself."""
        started_s = self.now()
        yield
        self.seconds[title] = self.now() - started_s
        self.console.print(f"[green]✓[/green] {title} [dim]{self.seconds[title]:.1f} s[/dim]")
