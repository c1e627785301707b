"""The `ragcache` command: runs the command that is asked for, and turns its result into an exit code.

0: done. 1: the command failed, and one line on standard error says why. 2: the arguments are wrong.
130: interrupted.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

from rich.markup import escape

from ragcache_cli.commands import (
    ask,
    calibrate,
    corpus,
    dashboard,
    demo,
    doctor,
    index,
    monitoring,
    profile,
    serve,
    simulate,
    top,
    warm,
)
from ragcache_cli.folders import cache_home
from ragcache_cli.logging_setup import is_log_level_ours, send_stderr_to, silence_libraries
from ragcache_cli.option_names import in_options, warn_in_options
from ragcache_cli.visible_console import VisibleConsole
from ragcache_engine import EngineError, RAGCacheError, __version__

COMMANDS: Mapping[str, ModuleType] = {
    "demo": demo,
    "ask": ask,
    "profile": profile,
    "calibrate": calibrate,
    "simulate": simulate,
    "warm": warm,
    "serve": serve,
    "corpus": corpus,
    "index": index,
    "dashboard": dashboard,
    "top": top,
    "monitoring": monitoring,
    "doctor": doctor,
}
"""The commands by name, in the order of the help."""
LOG = "last-run.log"
NOT_WRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. arguments: those of the process by default."""
    own, for_vllm = _split_at_double_dash(sys.argv[1:] if arguments is None else arguments)
    parsed = parser().parse_args(own)
    parsed.vllm_arguments = for_vllm
    # A server's log belongs on its terminal, where docker and systemd look for it.
    to_log = is_log_level_ours() and parsed.run not in (serve.run, index.run)
    silence_libraries()
    errors = VisibleConsole(stderr=True, highlight=False)
    log: Path | None = None
    try:
        redirected = send_stderr_to(cache_home() / "logs" / LOG) if to_log else nullcontext()
        with redirected as log, warn_in_options(vars(parsed)):
            code: int = parsed.run(parsed, VisibleConsole(highlight=False))
    except RAGCacheError as error:
        shown = in_options(str(error), vars(parsed))
        errors.print(f"[bold red]error:[/bold red] {escape(shown)}", soft_wrap=True)
        if log and isinstance(error, EngineError):
            errors.print(f"The model's processes wrote their log to {log}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of the output has ended, as in `ragcache ask ... | head`.
        sys.stdout = None  # a flush at exit would fail again
        return 1
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        # A library's own files, most likely: what commands write names itself.
        line = f"{error}: make room there, or set HOME and RAGCACHE_HOME to folders with room"
        errors.print(f"[bold red]error:[/bold red] {escape(line)}", soft_wrap=True)
        return 1
    return code


def _split_at_double_dash(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split off what `serve` passes on to `vllm serve`. Other commands have no double dash."""
    if "--" not in arguments or arguments[0] != "serve":
        return arguments, ()
    at = list(arguments).index("--")
    return arguments[:at], arguments[at + 1 :]


def parser() -> argparse.ArgumentParser:
    """Make the parser of all commands. Each sets `run`, the function to call."""
    made = argparse.ArgumentParser(
        prog="ragcache", description="RAG answers sooner: documents are prefilled once."
    )
    made.add_argument("--version", action="version", version=f"ragcache {__version__}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.SUMMARY, description=command.DESCRIPTION)
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
