"""The parts of a run. Each is carried out in a process of its own, which starts the engines it needs."""

from __future__ import annotations

from gpu.answering import answers, likeness
from gpu.model import weights
from gpu.run import Run
from gpu.starting import machine, start
from gpu.streaming import stream
from gpu.timing import borrowed, ttft

PARTS = {
    "machine": machine,
    "weights": weights,
    "start": start,
    "answers": answers,
    "likeness": likeness,
    "ttft": ttft,
    "borrowed": borrowed,
    "stream": stream,
}


async def carry_out_part(run: Run) -> None:
    """Carry out the part that the run names, such as "stream:lru". Raises KeyError for others."""
    name, _, detail = run.part.partition(":")
    await PARTS[name](run, detail)
