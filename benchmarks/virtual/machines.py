"""The machines of the virtual clock: how long steps and copies take, and what each tier holds.

A step computes parts of several requests. Each part is a pair: the tokens that its request has cached or
computed before, and those that the step computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ragcache_engine.knowledge import CostProfile

Parts = Sequence[tuple[int, int]]


class StepTimes(Protocol):
    """Tells how long the model takes."""

    def step_s(self, parts: Parts) -> float:
        """Return the seconds of a step that computes these parts."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """The times of a cost profile. A step of several requests takes as long as a prefill of one request
    that has as many tokens to compute, and that attends to as many pairs of tokens.

    outside_s: seconds of each measured time that a request spends outside the model's process. They hold
      up no other request, so they are no part of a step.
    request_s: what each request of a step takes besides, after the first.
    """

    profile: CostProfile
    outside_s: float
    request_s: float = 0.0

    def step_s(self, parts: Parts) -> float:
        computed = sum(new for _, new in parts)
        if not computed:
            return 0.0
        pairs = sum(new * (before + new / 2) for before, new in parts)
        before = max(0.0, pairs / computed - computed / 2)
        seconds = self.profile.prefill_s(before, computed) - self.outside_s
        return max(0.0, seconds) + self.request_s * (len(parts) - 1)


@dataclass(frozen=True, slots=True)
class PublishedSteps:
    """A roofline: a step takes as long as its arithmetic or its reads of memory, whichever is longer.

    parameters, layers, width: of the model, whose weights are read once a step. width: of its attention,
      all heads together. token_bytes: key-value bytes of a token.
    flops, bytes_per_s: what the accelerators reach together. fixed_s: of every step.
    """

    parameters: float
    layers: int
    width: int
    token_bytes: int
    flops: float
    bytes_per_s: float
    fixed_s: float

    def step_s(self, parts: Parts) -> float:
        computed = sum(new for _, new in parts)
        if not computed:
            return 0.0
        pairs = sum(new * (before + new / 2) for before, new in parts)
        arithmetic = 2 * self.parameters * computed + 4 * self.layers * self.width * pairs
        read = 2 * self.parameters + self.token_bytes * sum(before for before, _ in parts)
        return self.fixed_s + max(arithmetic / self.flops, read / self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with a model on it.

    key, name: for command lines and tables. basis: where the times come from.
    outside_s: from the question to the model's process and from there to the caller, without a search.
    device_tokens, host_tokens, disk_tokens: what each tier holds.
    host_bytes_per_s, disk_bytes_per_s: of copies, in each direction.
    copies_in_step: whether the model waits while blocks are copied between device and host, as on a CPU;
      otherwise they run beside it.
    steps_ahead: how many steps vLLM schedules before the results of the first are there.
    at_once, step_tokens: the most requests and tokens of a step.
    document_times: how many times as long as in the question set documents are.
    """

    key: str
    name: str
    basis: str
    steps: StepTimes
    outside_s: float
    block_tokens: int
    token_bytes: int
    device_tokens: int
    host_tokens: int
    disk_tokens: int
    host_bytes_per_s: float
    disk_bytes_per_s: float
    copies_in_step: bool
    steps_ahead: int
    at_once: int
    step_tokens: int
    document_times: int = 1

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.token_bytes

    def blocks(self, tokens: int) -> int:
        """Return how many whole blocks this many tokens are."""
        return tokens // self.block_tokens


def bench_machine(profile: CostProfile, outside_s: float, request_s: float = 0.0) -> Machine:
    """Return the machine and the sizes of `make bench`: two cores, SmolLM2-135M in bfloat16.

    profile, outside_s, request_s: as in MeasuredSteps.
    """
    token_bytes = 23_040
    return Machine(
        key="measured",
        name="SmolLM2-135M on two cores",
        basis=f"measured ({profile.hardware})",
        steps=MeasuredSteps(profile, outside_s, request_s),
        outside_s=outside_s,
        block_tokens=32,
        token_bytes=token_bytes,
        device_tokens=(96 << 20) // token_bytes,
        host_tokens=(384 << 20) // token_bytes,
        disk_tokens=(2 << 30) // token_bytes,
        host_bytes_per_s=3.4e9,
        disk_bytes_per_s=1e9,
        copies_in_step=True,
        steps_ahead=1,
        at_once=4,
        step_tokens=4096,
    )


H100_FLOPS, H100_BYTES_PER_S, PCIE5_BYTES_PER_S, NVME_BYTES_PER_S = 989e12, 3.35e12, 64e9, 7e9
"""Published peaks of an H100 SXM: bfloat16 without sparsity, and HBM3; of 16 lanes of PCI Express 5, in
one direction; of reads from one NVMe drive on PCI Express 4."""
REACHED_FLOPS, REACHED_BYTES = 0.5, 0.8
"""The shares of the peaks that are assumed to be reached."""
STEP_FIXED_S, OUTSIDE_S = 1e-3, 2e-3
"""Assumed for the simulated machines: what each step and each request takes besides."""


def simulated_machines() -> tuple[Machine, ...]:
    """Return a 7B model on one H100 and a 70B model on four: simulations, from published rates."""
    seven = _on_h100(
        key="7b",
        name="7B on one H100 (simulated)",
        gpus=1,
        parameters=7.25e9,
        layers=32,
        width=4096,
        token_bytes=131_072,
        host_bytes=128 << 30,
    )
    seventy = _on_h100(
        key="70b",
        name="70B on four H100 (simulated)",
        gpus=4,
        parameters=70.6e9,
        layers=80,
        width=8192,
        token_bytes=327_680,
        host_bytes=256 << 30,
    )
    return seven, seventy


def _on_h100(
    *, key: str, name: str, gpus: int, parameters: float, layers: int, width: int, token_bytes: int,
    host_bytes: int,
) -> Machine:  # fmt: skip
    # Of each GPU's 80 GB vLLM takes nine tenths; activations are assumed to take 2 GB of them.
    device_bytes = gpus * (0.9 * 80e9 - 2e9) - 2 * parameters
    return Machine(
        key=key,
        name=name,
        basis="simulated, from published peak rates",
        steps=PublishedSteps(
            parameters=parameters,
            layers=layers,
            width=width,
            token_bytes=token_bytes,
            flops=REACHED_FLOPS * gpus * H100_FLOPS,
            bytes_per_s=REACHED_BYTES * gpus * H100_BYTES_PER_S,
            fixed_s=STEP_FIXED_S,
        ),
        outside_s=OUTSIDE_S,
        block_tokens=16,
        token_bytes=token_bytes,
        device_tokens=int(device_bytes // token_bytes),
        host_tokens=host_bytes // token_bytes,
        disk_tokens=(2 << 40) // token_bytes,
        host_bytes_per_s=REACHED_BYTES * gpus * PCIE5_BYTES_PER_S,
        disk_bytes_per_s=REACHED_BYTES * NVME_BYTES_PER_S,
        copies_in_step=False,
        steps_ahead=2,
        at_once=256,
        step_tokens=8192,
        document_times=8,
    )
