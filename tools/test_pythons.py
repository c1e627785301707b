"""Runs the tests that need no model on every Python that RAGCache promises and this machine has.

    .venv/bin/python tools/test_pythons.py                                      # make test-pythons
    .venv/bin/python tools/test_pythons.py --only 3.13 tests/integrations/llamaindex

Each Python has an environment of its own in RAGCache's cache, as `make setup` would make it: without vLLM
and torch where there is no wheel of them for that Python. Nothing fetches a Python; one that is neither
on the path nor among pyenv's is named and skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from packaging.specifiers import SpecifierSet
from test_versions import NO_MODEL_TESTS, ROOT, Trial, console, run_uv, show

from ragcache_engine.cache_home import cache_home


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="one Python, such as 3.13")
    parser.add_argument(
        "tests", nargs="*", default=["tests"], help="files, folders, names of tests"
    )
    asked = parser.parse_args()
    rows = []
    for version, found in find_pythons():
        if asked.only in (None, version):
            if found is None:
                console.print(f"Python {version}: not found here, skipped", style="yellow")
                continue
            console.print(f"[bold]Python {version}[/bold] ({found})")
            python = environment_of(version, found)
            rows.append(
                Trial("Python", version, [*asked.tests, *NO_MODEL_TESTS], None, python).run()
            )
    if rows:
        show(rows)
    return 0 if rows and all(row.is_good for row in rows) else 1


def find_pythons() -> Iterator[tuple[str, str | None]]:
    """Yield each promised Python, such as "3.13", and the path of its interpreter; None if not found."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = SpecifierSet(project["requires-python"])
    # uv looks on the path, where pyenv has only names of its Pythons that stand for the chosen one.
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    folders = [str(folder) for folder in sorted(pyenv.glob("versions/3.*/bin"))]
    os.environ["PATH"] = os.pathsep.join([*folders, os.environ["PATH"]])
    for version in (f"3.{minor}" for minor in range(100)):
        if version in promised:
            found = None
            with suppress(SystemExit):
                words = ["python", "find", "--no-project", "--no-python-downloads", version]
                found = run_uv(words).strip()
            yield version, found


def environment_of(version: str, python: str) -> Path:
    """Return the interpreter of the environment for this Python, which is made or brought up to date.

    Without vLLM it takes 1.6 GB.
    """
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return Path(sys.executable)
    folder = cache_home() / "pythons" / version
    words = ["bash", "tools/bootstrap.sh", str(folder), python]
    if subprocess.run(words, cwd=ROOT, check=False).returncode:
        console.print(f"No vLLM for Python {version}: its tests skip", style="yellow")
        subprocess.run([*words, "--without-vllm"], cwd=ROOT, check=True)
    return folder / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main())
