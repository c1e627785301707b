"""The folder of a run: raw figures, plots and report, and the way from the first to the others."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ragcache_cli.bench.plan import Plan
from ragcache_cli.bench.plots import draw
from ragcache_cli.bench.report import Report, written
from ragcache_cli.errors import CommandError

RAW, REPORT = "raw.json.gz", "report.md"
_AS_JSON = TypeAdapter(Report)


def write(out: Path, report: Report, plan: Plan) -> None:
    """raw.json.gz with every answer so far, the plots and report.md; nothing before the first answer."""
    if not report.seen.plays:
        return
    raw = {"plan": asdict(plan), "report": _AS_JSON.dump_python(report, mode="json")}
    content = json.dumps(raw, ensure_ascii=False, separators=(",", ":"))
    with gzip.GzipFile(out / RAW, "wb", mtime=0) as file:
        file.write(content.encode())
    _show(out, report)


def holds_run(folder: Path) -> bool:
    """Whether raw figures are there, which took an hour and are not to be overwritten."""
    return (folder / RAW).exists()


def rewrite(out: Path) -> Path:
    """The plots and report.md once more, from the raw figures. Returns the report's path.

    Raises CommandError if they cannot be read.
    """
    try:
        raw = json.loads(gzip.decompress((out / RAW).read_bytes()))
        report = _AS_JSON.validate_python(raw["report"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise CommandError(
            f"{out / RAW} cannot be read: {error}. It has to be of a run of this version"
        ) from error
    _show(out, report)
    return out / REPORT


def _show(out: Path, report: Report) -> None:
    draw(report.seen.plays, out)
    (out / REPORT).write_text(written(report), encoding="utf-8")
