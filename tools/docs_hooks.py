"""What mkdocs does beside its plugins: shows examples/, outside docs/, and the commands' help."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK_TO_EXAMPLES = re.compile(r"\]\(\.\./((?:\.\./)*examples/)")
HELP = re.compile(r"<!-- help of ragcache ?(?P<command>[\w ]*?) -->")
WIDTH = 100


@event_priority(100)  # before mkdocs-jupyter looks for notebooks
def on_files(files: Files, config: Any) -> Files:
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".ipynb", ".py"):
            name = f"examples/{path.name}"
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    # In the repository examples/ lies beside docs/, in the site below it.
    markdown = LINK_TO_EXAMPLES.sub(r"](\1", markdown)
    return HELP.sub(lambda found: f"```text\n{help_of(found['command'])}```", markdown)


def help_of(command: str) -> str:
    """What `ragcache COMMAND --help` prints; raises KeyError if there is no such command."""
    from ragcache_cli.main import parser

    asked = parser()
    for word in command.split():
        choices = next(a for a in asked._actions if isinstance(a, argparse._SubParsersAction))
        asked = choices.choices[word]
    asked.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)
    return asked.format_help()
