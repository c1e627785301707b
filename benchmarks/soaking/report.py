"""Writes what a soak saw: raw figures of every piece, and a table of all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter
from tables import table

from soaking.callers import Tally

QUEUE, SEMAPHORE = "psm_", "sem."
"""The beginnings of the names of vLLM's queues, and of Python's semaphores, in shared memory."""

PIECE = "piece-{number:02}.json"
REPORT = "report.md"


@dataclass
class Piece:
    """One run of the script. before, after: samples taken before the engine was made and after it was
    closed; samples: in between. others: what the callers of the other engines saw, by their kind.
    """

    number: int
    seed: int
    machine: dict[str, Any]
    settings: dict[str, Any]
    seconds: float
    tally: Tally
    others: dict[str, Tally]
    faults: dict[str, int]
    cannot: list[str]
    before: dict[str, Any]
    after: dict[str, Any]
    left_processes: int
    left_shared_memory: list[str]
    stats: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)


_PIECE = TypeAdapter(Piece)


def count_left_files(piece: Piece) -> int:
    """Count the files that nobody removes.

    Python removes a killed vLLM's queues and semaphores when this process ends; docs/vllm.md tells whose
    they are. A kill leaves at most two of each kind.
    """
    most = 2 * piece.faults.get("kill", 0)
    names = piece.left_shared_memory
    removed_later = (
        min(most, sum(name.startswith(kind) for name in names)) for kind in (QUEUE, SEMAPHORE)
    )
    return len(names) - sum(removed_later)


def read_pieces(folder: Path) -> list[Piece]:
    """Read the pieces that earlier runs left in the folder, in order."""
    return [_PIECE.validate_json(path.read_bytes()) for path in sorted(folder.glob("piece-*.json"))]


def write_piece(folder: Path, piece: Piece) -> None:
    """Keep a piece's raw figures, and write the report of all pieces so far."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PIECE.format(number=piece.number)).write_bytes(_PIECE.dump_json(piece, indent=1))
    text = "\n".join(report(read_pieces(folder))) + "\n"
    (folder / REPORT).write_text(text, encoding="utf-8")


def together(pieces: list[Piece]) -> Tally:
    """Count what all callers of all pieces saw, those of the other engines included."""
    whole = Tally()
    for piece in pieces:
        whole.add(piece.tally)
        for tally in piece.others.values():
            whole.add(tally)
    return whole


def failures(pieces: list[Piece]) -> list[str]:
    """Say, in a line each, what must not happen and did."""
    whole = together(pieces)
    found = [
        f"{count} {what}"
        for count, what in (
            (whole.wrong, "answers differ from those without a cache"),
            (whole.remembered, "forgotten documents were served from a cache"),
            (whole.hangs, "requests timed out"),
            (sum(whole.errors.values()), f"errors: {dict(whole.errors)}"),
            (sum(piece.left_processes for piece in pieces), "processes outlived the engine"),
            (sum(map(count_left_files, pieces)), "files left in /dev/shm"),
        )
        if count
    ]
    for piece in pieces:
        early, late = memory_of(piece)
        if late > 1.15 * early + 64:
            found.append(
                f"piece {piece.number}: this process grew from {early:.0f} to {late:.0f} MiB"
            )
    return found


def memory_of(piece: Piece) -> tuple[float, float]:
    """Return the host process's MiB in the second and in the last fifth of the piece; medians."""
    sizes = [sample["host_mib"] for sample in piece.samples]
    fifth = len(sizes) // 5
    if fifth == 0:
        return 0.0, 0.0
    return median(sizes[fifth : 2 * fifth]), median(sizes[-fifth:])


def report(pieces: list[Piece]) -> Iterator[str]:
    """Yield the report's lines, in Markdown."""
    whole, faults = together(pieces), Counter[str]()
    for piece in pieces:
        faults.update(piece.faults)
    first = pieces[0]
    yield "# Soak"
    yield ""
    yield (
        f"{whole.requests:,} requests by {first.settings['callers']} callers in {len(pieces)} "
        f"piece{'s' * (len(pieces) > 1)}, {sum(piece.seconds for piece in pieces) / 60:.0f} minutes, "
        f"on {first.machine['cores']} cores ({first.machine['cpu']}). Float32, greedy."
    )
    yield ""
    found = failures(pieces)
    yield f"**{'Passed' if not found else 'Failed'}.** " + "; ".join(found)
    yield ""
    cached = sum(whole.cached_tokens.values())
    tiers = ", ".join(f"{name} {whole.cached_tokens[name]:,}" for name in whole.cached_tokens)
    rows = {
        "turns": ", ".join(f"{name} {count:,}" for name, count in sorted(whole.turns.items())),
        "answers that differ from vLLM's without a cache": whole.wrong,
        "forgotten documents served": whole.remembered,
        "hangs": whole.hangs,
        "errors": ", ".join(f"{name} {count}" for name, count in whole.errors.items()) or 0,
        "longest turn": f"{whole.longest_s:.0f} s",
        "prompt tokens": f"{whole.prompt_tokens:,}, of which cached {cached:,} ({tiers})",
        "faults made": ", ".join(f"{name} {count}" for name, count in sorted(faults.items())) or 0,
        "faults that could not be made": ", ".join(sorted(set().union(*(p.cannot for p in pieces))))
        or "none",
        "borrowed tokens": f"{whole.borrowed_tokens:,}",
        "answers compared with nothing, as they may be approximate": f"{whole.approximate:,}",
        "requests of other engines": ", ".join(
            f"{kind} {sum(piece.others[kind].requests for piece in pieces if kind in piece.others):,}"
            for kind in sorted({kind for piece in pieces for kind in piece.others})
        )
        or 0,
    }
    yield from table(("", ""), ((name, str(value)) for name, value in rows.items()))
    yield "What each piece held, before it started its engine, early, late, and after it closed it:"
    yield ""
    heads = (
        "piece; seed; requests; memory, MiB; threads; open files; in /dev/shm; retried; damaged; "
    )
    yield from table((heads + "evicted").split("; "), map(cells_of, pieces))
    if whole.notes:
        yield "The first of what went wrong:"
        yield ""
        for note in whole.notes:
            yield f"- {note}"


def cells_of(piece: Piece) -> list[str]:
    early, late = memory_of(piece)
    before, after = piece.before, piece.after
    return [
        str(piece.number),
        str(piece.seed),
        f"{piece.tally.requests:,}",
        f"{before['host_mib']}, {early:.0f}, {late:.0f}, {after['host_mib']}",
        *(f"{before[held]} → {after[held]}" for held in ("threads", "files", "shared_memory")),
        *(str(piece.stats[name]) for name in ("retried", "damaged", "evicted")),
    ]
