"""Writes the report of the virtual clock: tables, and a plot of TTFT against the rate."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from comparing.systems import ARC, FULL, LRU, OFF, ON
from tables import table

from virtual.agreement import Agreement
from virtual.figures import MEASURES, SLO_SHARE, SLO_TIMES, Figures, find_losses, slo_throughput
from virtual.machines import Machine
from virtual.measured import Fit
from virtual.sweep import Scene, SystemRun
from virtual.systems import BY_KEY, LONGEST_PREFIX

BASELINES = (OFF.key, ON.key, LONGEST_PREFIX.key, LRU.key, ARC.key)
PLOTTED = (*BASELINES, FULL.key)


def write_report(
    scenes: Sequence[Scene],
    runs: Sequence[SystemRun],
    agreed: Sequence[Agreement],
    fit: Fit,
    command: str,
) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Every system on a virtual clock",
        "",
        f"`{command}`. vLLM's real scheduler, block pool and offload, and RAGCache's real decisions, "
        "around a model that computes nothing; steps, copies and disk reads take virtual time, so the "
        "same command gives the same digits. What runs outside the scheduler is not played: the "
        "frameworks, and speculation, as every search takes under a millisecond. Nor does time pass "
        "while a scheduler thinks. TTFT in seconds. The SLO is "
        f"{SLO_TIMES:g} times the mean TTFT of a request alone on vLLM without a cache; a rate is within "
        f"it if {SLO_SHARE:.0%} of its requests are. Fairness is Jain's index of the TTFTs.",
        "",
        *_describe_machines(scenes, fit),
        *_describe_agreement(agreed),
    ]
    for scene in scenes:
        lines += _describe_scene(scene, [run for run in runs if run.scene == scene.name])
    return "\n".join(lines) + "\n"


def _describe_machines(scenes: Sequence[Scene], fit: Fit) -> Iterator[str]:
    yield "## Machines"
    yield ""
    heads = "machine; basis; device, host, disk tokens; alone: 512 tokens, one decoded token; "
    heads += "host, disk GB/s; at once; step"
    machines = {scene.machine.key: scene.machine for scene in scenes}.values()
    yield from table(heads.split("; "), map(_machine_row, machines))
    yield (
        f"The measured one is fitted to {fit.requests} requests that the kept run asked one at a time: "
        f"{fit.fixed_s * 1e3:.1f} ms + {fit.token_s * 1e3:.3f} ms a token + {fit.pair_s * 1e9:.0f} ns a "
        f"pair of tokens; half of them are within {fit.error:.0%}. {fit.outside_s * 1e3:.0f} ms of it "
        "are outside the model's process, by the time between two tokens."
    )
    yield ""


def _machine_row(machine: Machine) -> tuple[str, ...]:
    prefill = machine.steps.step_s([(0, 512)])
    decode = machine.steps.step_s([(512, 1)])
    return (
        machine.name,
        machine.basis,
        f"{machine.device_tokens:,}, {machine.host_tokens:,}, {machine.disk_tokens:,}",
        f"{prefill * 1e3:.1f} ms, {decode * 1e3:.1f} ms",
        f"{machine.host_bytes_per_s / 1e9:.1f}, {machine.disk_bytes_per_s / 1e9:.1f}",
        str(machine.at_once),
        f"{machine.step_tokens:,}",
    )


def _describe_agreement(agreed: Sequence[Agreement]) -> Iterator[str]:
    if not agreed:
        return
    yield "## Agreement with the real engine"
    yield ""
    yield (
        "The kept run's requests, at the same times, with the same warming. Mean TTFT; in brackets that "
        "of each of its two starts, whose difference is the noise of the real engine."
    )
    yield ""
    heads = "trace, load, system, real, virtual, virtual/real, p50, p99, cached; real, virtual"
    yield from table(
        [head.replace(";", ",") for head in heads.split(", ")],
        (
            (
                one.trace.split(",")[0],
                one.load,
                BY_KEY[one.system].name,
                f"{one.real_mean:.2f} ({', '.join(f'{start:.2f}' for start in one.real_starts)})",
                f"{one.virtual_mean:.2f}",
                f"{one.virtual_mean / one.real_mean:.2f}",
                f"{one.virtual_p50 / one.real_p50:.2f}",
                f"{one.virtual_p99 / one.real_p99:.2f}",
                f"{one.real_cached:.1%}",
                f"{one.virtual_cached:.1%}",
            )
            for one in agreed
        ),
    )
    for trace in dict.fromkeys(one.trace for one in agreed):
        ratios = [one.virtual_mean / one.real_mean for one in agreed if one.trace == trace]
        apart = statistics.median(abs(ratio - 1) for ratio in ratios)
        yield (
            f"- {trace.split(',')[0]}: virtual over real mean TTFT {min(ratios):.2f} to "
            f"{max(ratios):.2f}, {apart:.0%} apart in the median of {len(ratios)}."
        )
    points = max(abs(one.virtual_cached - one.real_cached) for one in agreed)
    yield f"- Cached tokens are at most {100 * points:.1f} points apart."
    yield ""


def _describe_scene(scene: Scene, runs: Sequence[SystemRun]) -> Iterator[str]:
    if not runs:
        return
    by_key = {run.system: run for run in runs}
    ordered = [by_key[key] for key in BY_KEY if key in by_key]
    first = ordered[0]
    times = scene.machine.document_times
    longer = f", documents {times} times as long" if times > 1 else ""
    yield f"## {scene.name}"
    yield ""
    yield (
        f"{scene.requests:,} requests at each rate after {scene.warm:,}, Zipf {scene.zipf:g}{longer}; "
        f"capacity without a cache {first.capacity:.3g} a second, SLO {first.slo_s:.3g} s."
    )
    yield ""
    for title, read in (
        ("TTFT mean", lambda one: f"{one.ttft_mean:.3f}"),
        ("TTFT p50", lambda one: f"{one.ttft_p50:.3f}"),
        ("TTFT p99", lambda one: f"{one.ttft_p99:.3f}"),
        ("Longest TTFT", lambda one: f"{one.ttft_max:.2f}"),
        ("Fairness", lambda one: f"{one.fairness:.2f}"),
        ("Cached", lambda one: f"{one.cached:.1%}"),
    ):
        rows = ([BY_KEY[run.system].name, *map(read, run.figures)] for run in ordered)
        yield from table([title, *(f"{share:g}" for share in scene.rates)], rows)
    yield from table(
        ("system", "throughput at the SLO, requests a second", "completed at the highest rate"),
        (
            (BY_KEY[run.system].name, _throughput(run), f"{run.figures[-1].completed:.2f}")
            for run in ordered
        ),
    )
    yield from _describe_losses(by_key)


def _throughput(run: SystemRun) -> str:
    rate, is_least = slo_throughput(run.figures)
    least = "at least " if is_least else ""
    return f"{least}{rate:.2f} ({rate / run.capacity:.2f} of capacity)"


def _describe_losses(by_key: Mapping[str, SystemRun]) -> Iterator[str]:
    if FULL.key not in by_key:
        return
    ours = by_key[FULL.key]
    others = {key: by_key[key].figures for key in BASELINES if key in by_key}
    losses = find_losses(ours.figures, others, MEASURES)
    asked = len(ours.figures) * len(others) * len(MEASURES)
    yield f"RAGCache is slower in {len(losses)} of {asked} comparisons (by more than half a percent)."
    yield ""
    for loss in losses:
        share = loss.rate / ours.capacity
        yield (
            f"- at {share:g} of capacity, {loss.measure.replace('ttft_', '')}: {loss.times:.3f} times "
            f"that of {BY_KEY[loss.baseline].name}"
        )
    yield ""


def write_plot(path: Path, scenes: Sequence[Scene], runs: Sequence[SystemRun]) -> None:
    """Plot mean and p99 TTFT against the rate, one row of plots for each scene."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(scenes), 2, figsize=(11, 3.6 * len(scenes)), squeeze=False, layout="constrained"
    )
    for row, scene in zip(axes, scenes, strict=True):
        found = {run.system: run for run in runs if run.scene == scene.name}
        for plot, measure in zip(row, ("ttft_mean", "ttft_p99"), strict=True):
            for key in PLOTTED:
                if key in found:
                    _draw(plot, found[key].figures, found[key].capacity, measure, key)
            if found:
                slo_s = next(iter(found.values())).slo_s
                plot.axhline(slo_s, color="grey", linewidth=0.8, linestyle=":")
            plot.set(xscale="log", yscale="log", xlabel="rate, of the capacity without a cache")
            plot.set_ylabel(f"{measure.replace('ttft_', 'TTFT, ')}, s")
            plot.set_title(scene.name, fontsize=9)
            plot.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw(plot: Any, figures: Sequence[Figures], capacity: float, measure: str, key: str) -> None:
    plot.plot(
        [one.rate / capacity for one in figures],
        [getattr(one, measure) for one in figures],
        marker="o",
        markersize=3,
        linewidth=2.2 if key == FULL.key else 1.2,
        label=BY_KEY[key].name,
    )
