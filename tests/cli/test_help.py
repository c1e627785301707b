"""Every argument of every command says what it is for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from ragcache_cli.main import COMMANDS, parser

DEFAULT = re.compile(r"\(.*?\)|default:.*|%\(\w+\)s")
"""What tells no more than which value holds if none is given."""


def arguments_of(made: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield each command's arguments with the command's name, those of commands below it too."""
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from arguments_of(below)
        else:
            yield made.prog, action


def says_what_for(action: argparse.Action) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", DEFAULT.sub("", action.help or ""))) > 1


def test_no_argument_is_without_help():
    found = list(arguments_of(parser()))
    assert {f"ragcache {name}" for name in COMMANDS} <= {command for command, _ in found}
    bare = [(command, action.dest) for command, action in found if not says_what_for(action)]
    assert bare == []


def test_a_help_that_tells_only_the_default_does_not_do():
    made = argparse.ArgumentParser()
    for text in (None, "(3)", "default: %(default)s", "(default: 8000)", "sets (100)"):
        assert not says_what_for(made.add_argument(f"--x{len(made._actions)}", help=text))
    assert says_what_for(made.add_argument("--ok", help="passages a question (3)"))


def test_every_help_can_be_printed():
    for command, _ in arguments_of(parser()):
        assert command
    assert "--corpus FOLDER" in format_help("ask")
    for name in COMMANDS:
        assert format_help(name)


def format_help(command: str) -> str:
    (commands,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    text: str = commands.choices[command].format_help()
    return text
