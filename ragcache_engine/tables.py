"""Small tables with a bar of shares, as plain text and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ragcache_engine.visible import visible

BAR_CHARACTERS = 32

_BAR_PIXELS = 320
# Of middling brightness, so that they stand out from a light and from a dark page.
_COLOURS = ("#2f8f5b", "#3b82c4", "#8b6fc0", "#c2568f", "#9a9a9a")
_LETTERS = "#=-~."


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole. share: between 0 and 1."""

    name: str
    share: float


@dataclass(frozen=True, slots=True)
class Table:
    """Names and values, and a bar of up to five shares that make up a whole; an empty bar is left out.

    A share has its colour by its place, so one of 0 keeps the place and is not drawn.

    >>> print(Table("Tea", [("cups", "4")], [Share("full", 0.75), Share("empty", 0.25)]).as_text())
    Tea
      cups  4
      [########################========]  full 75%, empty 25%
    """

    title: str
    rows: Sequence[tuple[str, str]]
    bar: Sequence[Share] = ()

    def as_text(self) -> str:
        """Return lines for a terminal."""
        rows = [(visible(name), visible(value)) for name, value in self.rows]
        width = max((len(name) for name, _ in rows), default=0)
        lines = [visible(self.title), *(f"  {name:{width}}  {value}" for name, value in rows)]
        if self.bar:
            ends = [round(BAR_CHARACTERS * end) for end in _ends(self.bar)]
            drawn = "".join(
                letter * (end - start)
                for letter, start, end in zip(_LETTERS, [0, *ends], ends, strict=False)
            )
            lines.append(f"  [{drawn:{BAR_CHARACTERS}}]  {self._legend()}")
        return "\n".join(line.rstrip() for line in lines)

    def as_html(self) -> str:
        """Return HTML that inherits the page's colours and font, and loads nothing."""
        title = escape(visible(self.title))
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left;font-weight:normal;opacity:.75;'
            f'padding:1px 12px 1px 0">{escape(visible(name))}</th>'
            f'<td style="text-align:left;padding:1px 0">{escape(visible(value))}</td></tr>'
            for name, value in self.rows
        )
        return (
            f'<div style="color:inherit;background:transparent"><strong>{title}</strong>'
            f'<table style="border-collapse:collapse;color:inherit;background:transparent;margin:4px 0">'
            f"{rows}</table>{self._html_bar()}</div>"
        )

    def _html_bar(self) -> str:
        if not self.bar:
            return ""
        drawn = [
            (part, colour) for part, colour in zip(self.bar, _COLOURS, strict=False) if part.share
        ]
        parts = "".join(
            f'<div style="width:{100 * part.share:.1f}%;background:{colour}"></div>'
            for part, colour in drawn
        )
        keys = " ".join(
            f'<span style="white-space:nowrap"><span style="color:{colour}">&#9632;</span> '
            f"{escape(part.name)} {part.share:.0%}</span>"
            for part, colour in drawn
        )
        return (
            f'<div role="img" aria-label="{escape(self._legend())}" style="display:flex;'
            f"width:{_BAR_PIXELS}px;max-width:100%;height:10px;border:1px solid currentColor;"
            f'border-radius:3px;overflow:hidden">{parts}</div><div>{keys}</div>'
        )

    def _legend(self) -> str:
        return ", ".join(f"{part.name} {part.share:.0%}" for part in self.bar if part.share)


class ShownAsTable:
    """Shows itself in a notebook as the table that `_table` returns."""

    __slots__ = ()

    def _table(self) -> Table:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self._table().as_html()


def _ends(bar: Sequence[Share]) -> list[float]:
    ends, end = [], 0.0
    for part in bar:
        end += part.share
        ends.append(min(end, 1.0))
    return ends
