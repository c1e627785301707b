"""Play the same requests to every system in turn, and keep all measurements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from comparing.figures import Closeness, Differing, Play, liken
from comparing.plan import DEVICE_WARM, SKEW, Group, Load, Part, Plan
from comparing.questions import Corpora, ReadySet
from comparing.record import RunRecord, Seen, Warming
from comparing.systems import FULL, OFF, RAGCACHE, Sizes, System
from comparing.worker_client import Worker
from comparing.workload import Request, draw_arrivals, draw_questions
from ragcache_cli.processor_time import machine_s, wait_for_rest

CAPACITY_QUESTIONS = 8
COMPARED_ANSWERS = 24
"""How many answers of the model's own length are compared, of each question set."""
Say = Callable[[str], None]
"""Prints a line of progress."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all plays of a run share. main: the question set. log: the file for the systems' output."""

    corpora: Corpora
    main: str
    sizes: Sizes
    log: Path
    seed: int
    say: Say


def carry_out(plan: Plan, bench: Bench, record: RunRecord, save: Callable[[], None]) -> None:
    """Measure into the record, and save it after every group. Raises CommandError if a system fails."""
    for group in plan.groups:
        play_group(group, bench, record)
        try:
            save()  # so that a failure an hour later loses nothing
        except Exception as error:  # the last report raises it; measuring goes on
            bench.say(f"no report so far, only raw figures: {type(error).__name__}: {error}")
    if plan.checks_float32:
        record.float32 = compare_in_float32(bench)


@contextmanager
def start_systems(systems: Sequence[System], sizes: Sizes, bench: Bench) -> Iterator[list[Worker]]:
    """Start the systems, each in a process of its own, and end all of them at once with the block.

    Two start at a time: a start keeps one core busy. Raises CommandError.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(system, sizes, bench.log)) for system in systems]

        def start(worker: Worker) -> None:
            began_s = time.monotonic()
            worker.start()
            bench.say(f"{worker.system.name} is up after {time.monotonic() - began_s:.0f} s")

        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(start, workers))
            yield workers
        finally:
            for worker in workers:
                worker.begin_close()


def play_group(group: Group, bench: Bench, record: RunRecord) -> None:
    """Play a group's parts to its systems in each of its starts. Raises CommandError."""
    sizes, seen = bench.sizes.multiplied(group.memory_times), record.seen
    for start in range(group.starts):
        with start_systems(order_for_start(group.systems, start), sizes, bench) as workers:
            for part in group.parts:
                wanted = [
                    w for w in workers if part.systems is None or w.system.key in part.systems
                ]
                _play_part(group, part, start, wanted or workers, bench, seen)
            for worker in workers:
                seen.told.append(
                    {
                        "system": worker.system.key,
                        "part": group.parts[0].name,
                        "start": start,
                        "memory_bytes": worker.memory_bytes(),
                        **worker.ask("read_counters"),
                    }
                )
            if start == group.starts - 1:
                for name in group.likened:
                    record.closeness[name] = compare_answers(workers, name, bench)


def order_for_start(systems: Sequence[System], start: int) -> tuple[System, ...]:
    """Return the order in which to start systems and play to them: backwards in every other start.

    From one start to the next, an engine that does the same work takes up to a fifth more or less time.
    """
    return tuple(systems if start % 2 == 0 else reversed(systems))


def draw_part(group: Group, part: Part, questions: int, start: int, seed: int) -> list[int]:
    """Draw the questions of a part in one start.

    The result has first the questions that warm up, the same in every start, and then those of this
    start's plays.
    """
    numbers = draw_questions(questions, group.drawn(part), part.trace.zipf, seed)
    first = part.warm + start * part.counted
    return [*numbers[: part.warm], *numbers[first : first + part.counted]]


def _play_part(
    group: Group, part: Part, start: int, workers: Sequence[Worker], bench: Bench, seen: Seen
) -> None:
    ready = bench.corpora.ready(part.trace.set, part.trace.top_k)
    drawn = draw_part(group, part, len(ready.found), start, bench.seed)
    for worker in workers:
        _prepare(worker, ready, part.trace.top_k, bench)
        worker.ask("clear")
    numbers = iter(drawn)

    def requests(count: int, times: Sequence[float] | None = None) -> list[Request]:
        chosen = [next(numbers) for _ in range(count)]
        return [
            Request(question, at_s, ready.lengths[question])
            for question, at_s in zip(chosen, times or [0.0] * count, strict=True)
        ]

    before = requests(part.warm)
    capacity = None
    if any(load.rate for load in part.loads):  # before any cache is filled, as it empties one
        capacity = seen.capacity.get(part.trace.name) or measure_capacity(workers, before)
        seen.capacity[part.trace.name] = capacity
    if part.is_warmed:
        seen.warmed += _warm_documents(part, start, drawn, workers, bench.say)
    prefilled = [replace(one, max_tokens=1) for one in before]  # caches reuse prompts, not answers
    for worker in workers:
        if part.warm and worker.system.key != OFF.key:
            worker.play(choose_warming(prefilled, worker.system), at_once=4)
            worker.ask("rest")
            bench.say(f"{part.trace.name}: {worker.system.name} is warm")
    first = start * part.rounds
    for number in range(first, first + part.rounds):
        for load in part.loads:
            rate = round(load.rate * capacity, 2) if load.rate and capacity else None
            count = part.requests_at(load)
            times = draw_arrivals(rate, count, bench.seed + number) if rate else None
            asked = requests(count, times)
            turn = number % len(workers)
            played = [
                _play_once(part, load, rate, number, worker, workers, asked)
                for worker in (*workers[turn:], *workers[:turn])
            ]
            # All or none, so that an interrupted run has only rounds with all systems.
            seen.plays += [replace(one, start=start) for one in played]
            bench.say(f"{part.trace.name}, {load.name}: round {number + 1}")


def _prepare(worker: Worker, ready: ReadySet, top_k: int, bench: Bench) -> None:
    worker.ask("prepare", str(ready.folder), top_k, asdict(bench.corpora.form))


def choose_warming(prefilled: Sequence[Request], system: System) -> Sequence[Request]:
    """Return those of the requests that warm up which this system needs to fill its caches.

    A cache on the device alone holds nothing older than the last ones.
    """
    return prefilled if system.has_host else prefilled[-DEVICE_WARM:]


def _warm_documents(
    part: Part, start: int, drawn: Sequence[int], workers: Sequence[Worker], say: Say
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
                **worker.ask("warm", sorted(set(drawn))),
            )
            worker.ask("rest")
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
    worker.ask("rest")  # what it prepares in idle time would slow down the others
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
    Without such a system, the first system is measured, with an empty cache, which it has afterwards too.
    """
    found = [worker for worker in workers if worker.system.key == OFF.key]
    worker = found[0] if found else workers[0]
    # A repeated question would be cached: only different ones show the time of computing.
    different = list({one.question: one for one in requests}.values())[-CAPACITY_QUESTIONS:]
    if not found:
        worker.ask("clear")
    wait_for_rest(lambda: sum(one.cpu_s() for one in workers))
    answers = worker.play(different, at_once=1)
    if not found:
        worker.ask("clear")
    return 1 / statistics.fmean(answer["total_s"] for answer in answers)


def ask_freely(
    workers: Sequence[Worker], name: str, top_k: int, zipf: float | None, tokens: int, bench: Bench
) -> tuple[list[int], dict[str, list[str]]]:
    """Ask every system the same questions, several at a time, for answers of the model's own length.

    name: of the question set. Returns the questions' numbers, and the answers by system.
    """
    ready = bench.corpora.ready(name, top_k)
    numbers = draw_questions(len(ready.found), COMPARED_ANSWERS, zipf, bench.seed)
    requests = [Request(number, 0.0, tokens) for number in numbers]
    texts = {}
    for worker in workers:
        _prepare(worker, ready, top_k, bench)
        answers = worker.play(requests, bench.sizes.at_once, ignore_eos=False)
        texts[worker.system.key] = [answer["text"] for answer in answers]
        bench.say(f"{len(numbers)} answers of {worker.system.name} to compare")
    return numbers, texts


def compare_answers(workers: Sequence[Worker], name: str, bench: Bench) -> dict[str, Closeness]:
    """Compare each system's answers with those of vLLM in full; empty without these."""
    if OFF.key not in [worker.system.key for worker in workers]:
        return {}
    numbers, texts = ask_freely(workers, name, 5, None, 32, bench)
    answers = bench.corpora.ready(name, 5).given.answers
    accepted = [answers[number] for number in numbers]
    return {key: liken(found, texts[OFF.key], accepted) for key, found in texts.items()}


def compare_in_float32(bench: Bench) -> list[Differing]:
    """Count answers of RAGCache that differ from those of vLLM without a cache, both in float32.

    In float32 arithmetic is exact enough that batches do not matter, so no answer may differ. Questions
    are drawn as unevenly as in the main trace, so that caches have something to reuse.
    """
    sizes = replace(bench.sizes, dtype="float32", device_bytes=2 * bench.sizes.device_bytes)
    with start_systems((OFF, FULL), sizes, bench) as workers:
        _, texts = ask_freely(workers, bench.main, 2, SKEW, 24, bench)
    pairs = list(zip(texts[OFF.key], texts[FULL.key], strict=True))
    return [Differing(OFF.key, FULL.key, sum(a != b for a, b in pairs), len(pairs))]
