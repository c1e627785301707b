"""Nothing that a command shows steers the terminal, whoever wrote it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ragcache_cli import main as main_module
from ragcache_cli.main import main
from ragcache_cli.visible_console import VisibleConsole

EVIL = "tides\x1b]52;c;cm0gLXJmIH4=\x07\x9b2J\u202etxt"


def printed(what: object, *, terminal: bool = False, **options: object) -> str:
    file = StringIO()
    console = VisibleConsole(file=file, width=120, force_terminal=terminal, highlight=False)
    console.print(what, **options)  # type: ignore[arg-type]
    return file.getvalue()


def table() -> Table:
    made = Table("document", "blocks")
    made.add_row(EVIL, "3")
    return made


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "what", [escape(EVIL), table(), Group("above", table())], ids=["a text", "a table", "a group"]
)
def test_whatever_is_printed_is_shown_as_what_it_is(what: object, terminal: bool):
    text = printed(what, terminal=terminal)
    assert "\x1b]" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text
    assert r"tides\x1b]52;c;" in text


def test_the_lines_of_a_table_stay_equally_long():
    assert len({len(line) for line in printed(table()).splitlines()}) == 1


def test_a_live_display_is_no_exception():
    console = VisibleConsole(file=StringIO(), width=120, force_terminal=True)
    with Live(table(), console=console, screen=True):
        pass
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b]52" not in text
    assert "\x1b[?1049h" in text, "rich itself may steer the terminal"


def test_an_answer_keeps_its_lines_and_tabs():
    text = printed("1.\tone\n2. \x1b[5mtwo", markup=False, soft_wrap=True)
    assert text.splitlines() == ["1.      one", r"2. \x1b[5mtwo"]


def test_every_command_has_such_a_console(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    made: list[object] = []
    monkeypatch.setattr(
        main_module.doctor, "run", lambda parsed, console: made.append(console) or 0
    )
    assert main(["doctor"]) == 0
    assert isinstance(made[0], VisibleConsole)
    assert main(["simulate", str(tmp_path / "none\x1b[2J.jsonl")]) == 1
    assert "\x1b[2J" not in capsys.readouterr().err
