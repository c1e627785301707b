"""Lets the docs show this project's docstrings as they are meant: a line "name: what it is" is an item.

An extension of griffe, which reads the docstrings for mkdocs. In Markdown such lines would run together
into one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r"^(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*): (?P<rest>\S.*)$")
RAISES = re.compile(r"^Raises:? (?P<rest>\S.*)$")


def with_lists(text: str, names: set[str]) -> str:
    """The docstring with its items as a Markdown list.

    names: the parameters and attributes there are; other words before a colon are no items.
    """
    lines: list[str] = []
    in_item = in_code = in_doctest = False
    for line in text.split("\n"):
        in_doctest = bool(line) and (in_doctest or line.startswith(">>> "))
        if in_doctest:
            lines.append(f"    {line}")
            continue
        in_code = in_code != line.lstrip().startswith("```")
        item = None if in_code else ITEM.match(line)
        if item and names.issuperset(item["names"].split(", ")):
            if not in_item:
                lines.append("")
            listed = ", ".join(f"`{name}`" for name in item["names"].split(", "))
            lines.append(f"- {listed}: {item['rest']}")
            in_item = True
        elif in_item and line.startswith("  "):
            lines.append(f"    {line.strip()}")
        else:
            if in_item and line.strip():
                lines.append("")
            in_item = False
            raises = None if in_code else RAISES.match(line)
            lines.append(f"**Raises** {raises['rest']}" if raises else line)
    return "\n".join(lines)


class DocstringLists(griffe.Extension):
    """Rewrites docstrings once a whole package is read."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        self._visit(pkg)

    def _visit(self, thing: Any) -> None:
        if thing.is_alias:
            return
        if thing.docstring:
            thing.docstring.value = with_lists(thing.docstring.value, _names_in(thing))
        for member in getattr(thing, "members", {}).values():
            self._visit(member)


def _names_in(thing: Any) -> set[str]:
    parameters = {parameter.name.lstrip("*") for parameter in getattr(thing, "parameters", ())}
    return parameters | set(getattr(thing, "members", {}))
