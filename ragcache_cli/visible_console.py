"""The console of all commands: what documents, models and servers say cannot steer the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ragcache_engine.visible import visible


class VisibleConsole(Console):
    """Shows control characters and marks of direction as escapes, in whatever it prints.

    Lines and tabs stay, and so do rich's own colours and movements.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text, keep="\n\t"), segment.style)
