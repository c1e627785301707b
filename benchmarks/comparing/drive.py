"""Play the same requests to every system in turn, and keep all measurements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from comparing.corpora import Prepared
from comparing.plan import DEVICE_WARM, Group, Load, Part, TraceSpec
from comparing.plays import Play, Seen, Warming
from comparing.systems import OFF, RAGCACHE, Sizes, System
from comparing.worker_client import Worker
from comparing.workload import Request, draw_arrivals, draw_questions
from ragcache_cli.processor_time import machine_s, wait_for_rest

Say = Callable[[str], None]
CAPACITY_QUESTIONS = 8


@contextmanager
def start_systems(
    systems: Sequence[System], sizes: Sizes, log: Path, say: Say
) -> Iterator[list[Worker]]:
    """Start the systems, each in a process of its own, and end all of them at once with the block.

    Two start at a time: a start keeps one core busy. Raises BenchFailed.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(system, sizes, log)) for system in systems]

        def start(worker: Worker) -> None:
            began_s = time.monotonic()
            worker.begin_start()
            worker.wait_until_started()
            say(f"{worker.system.name} is up after {time.monotonic() - began_s:.0f} s")

        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(start, workers))
            yield workers
        finally:
            for worker in workers:
                worker.begin_close()


def play_group(
    group: Group, prepared: Callable[[TraceSpec], Prepared], sizes: Sizes, log: Path, seed: int,
    seen: Seen, say: Say, afterwards: Callable[[Sequence[Worker]], None],
) -> None:  # fmt: skip
    """Play a group's parts to its systems in each of its starts; add all results to `seen`.

    afterwards: called with the systems of the last start while they are up. Raises BenchFailed.
    """
    sizes = sizes.multiplied(group.memory_times)
    for start in range(group.starts):
        with start_systems(order_for_start(group.systems, start), sizes, log, say) as workers:
            for part in group.parts:
                wanted = [
                    w for w in workers if part.systems is None or w.system.key in part.systems
                ]
                numbers = draw_part(group, part, prepared(part.trace), start, seed)
                _play_part(
                    part, start, numbers, prepared(part.trace), wanted or workers, seed, seen, say
                )
            for worker in workers:
                seen.told.append(
                    {
                        "system": worker.system.key,
                        "part": group.parts[0].name,
                        "start": start,
                        "memory_bytes": worker.memory_bytes(),
                        **worker.read_counters(),
                    }
                )
            if start == group.starts - 1:
                afterwards(workers)


def order_for_start(systems: Sequence[System], start: int) -> tuple[System, ...]:
    """Return the order in which to start systems and play to them: backwards in every other start.

    From one start to the next, an engine that does the same work takes up to a fifth more or less time.
    """
    return tuple(systems if start % 2 == 0 else reversed(systems))


def draw_part(group: Group, part: Part, prepared: Prepared, start: int, seed: int) -> list[int]:
    """Draw the questions of a part in one start.

    The result has first the questions that warm up, the same in every start, and then those of this
    start's plays.
    """
    numbers = draw_questions(len(prepared.lengths), group.drawn(part), part.trace.zipf, seed)
    first = part.warm + start * part.counted
    return [*numbers[: part.warm], *numbers[first : first + part.counted]]


def _play_part(
    part: Part, start: int, drawn_numbers: Sequence[int], prepared: Prepared,
    workers: Sequence[Worker], seed: int, seen: Seen, say: Say,
) -> None:  # fmt: skip
    for worker in workers:
        worker.prepare(prepared.folder, part.trace.top_k)
        worker.clear()
    if part.is_warmed:
        seen.warmed += _warm_documents(part, start, drawn_numbers, workers, say)
    numbers = iter(drawn_numbers)

    def requests(count: int, times: Sequence[float] | None = None) -> list[Request]:
        chosen = [next(numbers) for _ in range(count)]
        times = times or [0.0] * count
        return [
            Request(question, at_s, prepared.lengths[question])
            for question, at_s in zip(chosen, times, strict=True)
        ]

    before = requests(part.warm)
    prefilled = [replace(one, max_tokens=1) for one in before]  # caches reuse prompts, not answers
    for worker in workers:
        if part.warm and worker.system.key != OFF.key:
            worker.play(choose_warming(prefilled, worker.system), at_once=4)
            say(f"{part.trace.name}: {worker.system.name} is warm")
    capacity = None
    if any(load.rate for load in part.loads):
        capacity = seen.capacity.get(part.trace.name) or measure_capacity(workers, before)
        seen.capacity[part.trace.name] = capacity
    first = start * part.rounds
    for number in range(first, first + part.rounds):
        for load in part.loads:
            rate = round(load.rate * capacity, 2) if load.rate and capacity else None
            times = draw_arrivals(rate, part.requests_at(load), seed + number) if rate else None
            asked = requests(part.requests_at(load), times)
            turn = number % len(workers)
            played = [
                _play_once(part, load, rate, number, worker, workers, asked)
                for worker in (*workers[turn:], *workers[:turn])
            ]
            # All or none, so that an interrupted run has only rounds with all systems.
            seen.plays += [replace(one, start=start) for one in played]
            say(f"{part.trace.name}, {load.name}: round {number + 1}")


def choose_warming(prefilled: Sequence[Request], system: System) -> Sequence[Request]:
    """Return those of the requests that warm up which this system needs to fill its caches.

    A cache on the device alone holds nothing older than the last ones.
    """
    return prefilled if system.has_host else prefilled[-DEVICE_WARM:]


def _warm_documents(
    part: Part, start: int, drawn_numbers: Sequence[int], workers: Sequence[Worker], say: Say
) -> list[Warming]:
    """Let RAGCache's systems prefill the documents that these questions find."""
    warmed = []
    for worker in workers:
        if worker.system.kind == RAGCACHE:
            told = Warming(
                part=part.name,
                trace=part.trace.name,
                system=worker.system.key,
                start=start,
                **worker.warm(sorted(set(drawn_numbers))),
            )
            say(f"{worker.system.name} prefilled {told.documents} documents, {told.seconds:.0f} s")
            warmed.append(told)
    return warmed


def _play_once(
    part: Part, load: Load, rate: float | None, number: int, worker: Worker,
    workers: Sequence[Worker], asked: Sequence[Request],
) -> Play:  # fmt: skip
    wait_for_rest(lambda: sum(one.cpu_s() for one in workers))
    cpu_s = {other.system.key: other.cpu_s() for other in workers}
    began_s, busy_s = time.monotonic(), machine_s()
    answers = worker.play(asked, at_once=None if rate else load.at_once)
    span_s = time.monotonic() - began_s - asked[0].at_s
    taken = {other.system.key: other.cpu_s() - cpu_s[other.system.key] for other in workers}
    foreign_s = machine_s() - busy_s - sum(taken.values())
    own_s = taken.pop(worker.system.key)
    return Play(
        part=part.name,
        trace=part.trace.name,
        system=worker.system.key,
        load=load.name,
        rate=rate,
        round=number,
        span_s=round(span_s, 3),
        cpu_s=round(own_s, 2),
        others_cpu_s=round(sum(taken.values()), 2),
        foreign_cpu_s=round(max(0.0, foreign_s), 2),
        answers=answers,
    )


def measure_capacity(workers: Sequence[Worker], requests: Sequence[Request]) -> float:
    """Measure how many requests a second the system without cache completes, one after the other.

    The rates of a plan are shares of this number, so that a plan means the same on every machine.
    Without such a system, the first system is measured, with an empty cache.
    """
    found = [worker for worker in workers if worker.system.key == OFF.key]
    worker = found[0] if found else workers[0]
    # A repeated question would be cached: only different ones show the time of computing.
    different = list({one.question: one for one in requests}.values())[-CAPACITY_QUESTIONS:]
    if not found:
        worker.clear()
    wait_for_rest(lambda: sum(one.cpu_s() for one in workers))
    answers = worker.play(different, at_once=1)
    return 1 / statistics.fmean(answer["total_s"] for answer in answers)
