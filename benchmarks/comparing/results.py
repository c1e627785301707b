"""Writes the folder of a run: raw figures, and the plots and the report made from them."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from comparing.plan import Plan
from comparing.plots import draw, draw_closeness
from comparing.record import RunRecord
from comparing.report.any_position import PICTURE, read_closeness
from comparing.report.sections import compose_report
from comparing.systems import SYSTEMS
from ragcache_cli.errors import CommandError

RAW, REPORT = "raw.json.gz", "report.md"
NOT_IN_FILE = frozenset({"studies", "systems"})
"""Fields of the record that raw.json.gz does not have: it has each study by name, and the plan."""
_RECORD, _PLAN = TypeAdapter(RunRecord), TypeAdapter(Plan)


def write_results(out: Path, record: RunRecord, plan: Plan) -> None:
    """Write raw.json.gz with every answer so far, the plots and report.md; nothing without answers."""
    if not record.seen.plays:
        return
    own = _RECORD.dump_python(record, mode="json", exclude=set(NOT_IN_FILE))
    raw = {"plan": asdict(plan), "report": {**own, **record.studies}}
    content = json.dumps(raw, ensure_ascii=False, separators=(",", ":"))
    with gzip.GzipFile(out / RAW, "wb", mtime=0) as file:
        file.write(content.encode())
    _show(out, record)


def holds_run(folder: Path) -> bool:
    """Return whether the folder has raw figures, which took long and must not be overwritten."""
    return (folder / RAW).exists()


def rewrite_report(out: Path) -> Path:
    """Write the plots and report.md again from the raw figures. Returns the report's path.

    Raises CommandError if the raw figures cannot be read.
    """
    try:
        raw = json.loads(gzip.decompress((out / RAW).read_bytes()))
        record = _read_record(raw)
    except (OSError, EOFError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise CommandError(
            f"{out / RAW} cannot be read: {error}. It has to be of a run of this version"
        ) from error
    _show(out, record)
    return out / REPORT


def _read_record(raw: dict[str, Any]) -> RunRecord:
    own = {field.name for field in fields(RunRecord)} - NOT_IN_FILE
    record = _RECORD.validate_python({k: v for k, v in raw["report"].items() if k in own})
    record.studies = {k: v for k, v in raw["report"].items() if k not in own}
    record.systems = SYSTEMS | _PLAN.validate_python(raw["plan"]).systems
    return record


def _show(out: Path, record: RunRecord) -> None:
    draw(record.seen.plays, record.systems, out)
    draw_closeness(record.seen.plays, record.systems, read_closeness(record), out / PICTURE)
    (out / REPORT).write_text(compose_report(record), encoding="utf-8")
