"""What a run has measured, and its file raw.json.gz."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from comparing.figures import Closeness, Differing, Play
from comparing.plan import Plan
from comparing.questions import TraceSummary
from comparing.systems import Sizes
from ragcache_cli.errors import CommandError

RAW = "raw.json.gz"


@dataclass(frozen=True, slots=True)
class Warming:
    """What it took a system to prefill the documents of a part.

    prompt_tokens: of the prompts that prefill them. computed_tokens: those of them that were computed.
    """

    part: str
    trace: str
    system: str
    start: int
    documents: int
    seconds: float
    prompt_tokens: int
    computed_tokens: int


@dataclass(slots=True)
class Seen:
    """Everything a run has measured so far.

    told: for each system, its own counters and its memory, after the plays of each start.
    capacity: by trace, how many requests a second vLLM without a cache completes.
    warmed: for each system that prefilled documents before a part, what that took.
    """

    plays: list[Play] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    capacity: dict[str, float] = field(default_factory=dict)
    warmed: list[Warming] = field(default_factory=list)


@dataclass(slots=True)
class RunRecord:
    """All measurements of a run, with its machine and its settings.

    command: the command line that runs it again. token_bytes: bytes of one token's key-value tensors;
      None if unknown. float32: answers that differ in float32, by system. closeness: by question set and
      system.
    """

    title: str
    command: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    sizes: Sizes
    token_bytes: int | None
    seen: Seen
    abouts: Sequence[TraceSummary]
    seconds: float = 0.0
    float32: Sequence[Differing] = ()
    load_average: tuple[float, float, float] = (0.0, 0.0, 0.0)
    closeness: dict[str, dict[str, Closeness]] = field(default_factory=dict)


_RECORD = TypeAdapter(RunRecord)


def write_record(out: Path, record: RunRecord, plan: Plan) -> None:
    raw = {"plan": asdict(plan), "report": _RECORD.dump_python(record, mode="json")}
    content = json.dumps(raw, ensure_ascii=False, separators=(",", ":"))
    with gzip.GzipFile(out / RAW, "wb", mtime=0) as file:
        file.write(content.encode())


def read_record(out: Path) -> RunRecord:
    """Read the record of a run. Raises CommandError if that cannot be done."""
    try:
        raw = json.loads(gzip.decompress((out / RAW).read_bytes()))
        return _RECORD.validate_python(raw["report"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise CommandError(
            f"{out / RAW} cannot be read: {error}. It has to be of a run of this version"
        ) from error
