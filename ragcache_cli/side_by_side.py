"""Shows the answers of several sides to one question: in columns that fill, or line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ragcache_cli.measurements import Asked, PassageSource
from ragcache_engine import Tier

FRAME_S = 0.1
"""The least time between two pictures of the columns: drawing them takes time from the model."""
FEWEST_COLUMNS = 72
LEGEND = (
    "Below an answer, for each passage: how many of its tokens were reused, and from where. Borrowed "
    "tokens come from another context, so they are approximate; the others of a borrowed passage were "
    "recomputed in this one. All the rest was computed."
)


class Shown(Protocol):
    """One question on the terminal. `say` takes a piece of a side's answer, `ended` all of it."""

    def say(self, name: str, text: str) -> None: ...

    def ended(self, name: str, asked: Asked) -> None: ...


def source_words(source: PassageSource) -> str:
    """Say in a few words where the tensors of a passage came from."""
    tokens = source.tokens
    if source.borrowed:
        return f"{source.borrowed}/{tokens} borrowed, {source.tier or 'computed now'}"
    if not source.cached.total:
        return f"0/{tokens} computed"
    tiers = [tier.value for tier in Tier if getattr(source.cached, tier.value)]
    return f"{source.cached.total}/{tokens} {'+'.join(tiers)}"


def short_name(passage: str) -> str:
    """Return a passage's id without the name of its source, where that leaves something."""
    return passage.rpartition("#")[2] or passage


@contextmanager
def show_question(title: str, names: Sequence[str], console: Console) -> Iterator[Shown]:
    """Show a question with a column for each name; line by line where columns cannot be redrawn."""
    if not console.is_terminal or console.width < FEWEST_COLUMNS:
        console.print(f"[bold]{escape(title)}[/bold]", soft_wrap=True)
        yield _Lines(console, max(map(len, names)))
        return
    columns = _Columns(title, {name: _Column() for name in names})
    with Live(columns.drawn(), console=console, auto_refresh=False) as live:
        columns.redraw = lambda: live.update(columns.drawn(), refresh=True)
        yield columns
        columns.redraw()


@dataclass(slots=True)
class _Lines:
    """A line when a side has answered, and one for each of its passages."""

    console: Console
    width: int

    def say(self, name: str, text: str) -> None:
        """Wait: pieces of several sides would mix up in lines."""

    def ended(self, name: str, asked: Asked) -> None:
        answer = " ".join(asked.answer.split())
        self._print(f"  {name:{self.width}}  {asked.ttft_s:5.2f} s  {answer}")
        told = [f"{short_name(one.passage)} {source_words(one)}" for one in asked.passages]
        self._print(f"  {'':{self.width}}           [{_tokens(asked)}]")
        if told:
            self._print(f"  {'':{self.width}}           [{'; '.join(told)}]")

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class _Column:
    text: str = ""
    asked: Asked | None = None


@dataclass(slots=True)
class _Columns:
    """Columns whose answers grow as their tokens arrive."""

    title: str
    columns: dict[str, _Column]
    now: Callable[[], float] = time.monotonic
    redraw: Callable[[], None] = field(default=lambda: None)
    _drawn_at_s: float = 0.0

    def say(self, name: str, text: str) -> None:
        self.columns[name].text += text
        if self.now() - self._drawn_at_s >= FRAME_S:
            self.redraw()
            self._drawn_at_s = self.now()

    def ended(self, name: str, asked: Asked) -> None:
        self.columns[name].asked = asked
        self.redraw()

    def drawn(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2), expand=True)
        for _ in self.columns:
            grid.add_column(ratio=1)
        grid.add_row(*(Text(name, "bold") for name in self.columns))
        grid.add_row(*(_time(column.asked) for column in self.columns.values()))
        grid.add_row(*(Text(" ".join(column.text.split())) for column in self.columns.values()))
        grid.add_row(*(_passages(column.asked) for column in self.columns.values()))
        return Group(Text(self.title, "bold cyan"), grid, Text())


def _time(asked: Asked | None) -> Text:
    return Text(f"first token {asked.ttft_s:.2f} s", "green") if asked else Text("…", "dim")


def _tokens(asked: Asked) -> str:
    reused = asked.cached.total + asked.borrowed.total
    return f"{reused} of {asked.prompt_tokens} tokens reused"


def _passages(asked: Asked | None) -> Text:
    if asked is None:
        return Text()
    lines = [_tokens(asked)]
    lines += [f"{short_name(one.passage)} {source_words(one)}" for one in asked.passages]
    return Text("\n".join(lines), "dim")
