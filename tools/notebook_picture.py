"""Takes a picture of some cells of a notebook for the docs, as they were kept, in a real browser.

    python tools/notebook_picture.py examples/anywhere.ipynb docs/images/notebook.png 9 14

The numbers are places of cells in the notebook, from 0. It needs Chromium on the PATH, and the extra dev.
"""

from __future__ import annotations

import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import sync_playwright

STYLE = """
body { font: 14px/1.45 sans-serif; margin: 18px; width: 860px; background: white; color: #222 }
pre { font: 13px/1.4 monospace; margin: 0; white-space: pre-wrap }
.input { background: #f5f5f5; border: 1px solid #ddd; padding: 8px 10px; margin-top: 14px }
.output { padding: 10px 10px 0 }
"""


def main() -> None:
    notebook, picture, *places = sys.argv[1:]
    cells = nbformat.read(notebook, as_version=4).cells
    shown = "".join(show(cells[int(place)]) for place in places)
    page = f"<html><head><style>{STYLE}</style></head><body>{shown}</body></html>"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(viewport={"width": 900, "height": 200}, device_scale_factor=1.5)
        tab.set_content(page)
        tab.screenshot(path=picture, full_page=True)
        browser.close()
    print(f"Written: {Path(picture)}")


def show(cell: Any) -> str:
    """Write a cell and what it put out as HTML: pages of ours as they are, everything else as text."""
    outputs = "".join(f'<div class="output">{show_output(one)}</div>' for one in cell.outputs)
    return f'<div class="input"><pre>{escape(cell.source)}</pre></div>{outputs}'


def show_output(output: Any) -> str:
    """Write one output as HTML, in the richest form that it has."""
    forms = output.get("data", {})
    if "text/html" in forms:
        return str(forms["text/html"])
    if "image/png" in forms:
        return f'<img src="data:image/png;base64,{forms["image/png"]}">'
    return f"<pre>{escape(output.get('text', forms.get('text/plain', '')))}</pre>"


if __name__ == "__main__":
    main()
