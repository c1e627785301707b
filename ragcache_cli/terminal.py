"""Shows each phase of a command's work: a spinner with the time, then how long the phase took."""

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
"""Called with how many pieces of work are done, and how many there are."""


class _KnownBar(BarColumn):
    """A bar that appears once the amount of work is known."""

    def render(self, task: Task) -> RenderableType:  # type: ignore[override]  # a bar or nothing
        return super().render(task) if task.total else ""


@dataclass(slots=True)
class Phases:
    """Times the phases of a command and shows the one that runs. seconds: by title, in order."""

    console: Console
    now: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def waiting(self, title: str) -> Iterator[Done]:
        """Show a spinner with the elapsed time while the block runs, for work that prints nothing.

        Yields a function that turns the spinner into a bar: call it with how many pieces are done, and
        how many there are.
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
        """Time the block, for work that prints by itself."""
        started_s = self.now()
        yield
        self.seconds[title] = self.now() - started_s
        self.console.print(f"[green]✓[/green] {title} [dim]{self.seconds[title]:.1f} s[/dim]")
