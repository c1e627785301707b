"""Run the notebooks of examples/ and keep what they print and draw, without what differs by machine.

    python tools/run_notebooks.py [NOTEBOOK ...]

A notebook that fails is left as it was.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 240
"""For one cell: the slowest starts an engine, and may convert the demo's model before."""


def executed(path: Path) -> Any:
    """The notebook with its outputs. Raises nbclient's CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    # The kernel is started as `python`: this one, whichever the shell would find.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["PYTHONPATH"] = str(ROOT)  # this copy of RAGCache, whichever is installed
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    return notebook


def without_noise(notebook: Any) -> Any:
    """Without logs and warnings of libraries, and without what says when and by which Python."""
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def main(paths: list[Path]) -> None:
    for path in paths or sorted(EXAMPLES.glob("*.ipynb")):
        print(f"running {path.name}", flush=True)
        nbformat.write(without_noise(executed(path)), path)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
