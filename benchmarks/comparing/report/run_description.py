"""The sections on a run's machine, requests and method."""

from __future__ import annotations

from collections.abc import Iterator

from comparing.figures import disturbance
from comparing.record import RunRecord

MIB = 1 << 20
QUIET_CORES = 0.1
"""The share of a core that other programs may take before a run's times cannot be trusted."""


def head(record: RunRecord) -> Iterator[str]:
    """Say what ran where, with which versions, and whether other programs disturbed it."""
    machine = record.machine
    memory = machine.get("memory_bytes") or 0
    gpus = ", ".join(gpu["name"] for gpu in machine.get("gpus", ())) or "no GPU"
    versions = ", ".join(f"{name} {value}" for name, value in record.versions.items() if value)
    yield f"# {record.title}"
    yield ""
    yield (
        f"Machine: {machine.get('cpu') or machine.get('system')}, {machine.get('cores')} cores, "
        f"{memory / 2**30:.0f} GiB, {gpus}; load average before the run "
        f"{record.load_average[0]:.1f}. {record.seconds / 60:.0f} minutes. Again: `{record.command}`."
    )
    yield ""
    if is_disturbed(record):
        cores = disturbance(record.seen.plays)
        yield (
            f"**This run was disturbed: other programs took up to {cores:.2f} of a core while a system "
            "was asked. Its times, and what follows from them, decide nothing; repeat it on a quiet "
            "machine.**"
        )
        yield ""
    yield f"Model: {record.sizes.model}, {record.sizes.dtype}. {versions}."
    yield ""


def is_disturbed(record: RunRecord) -> bool:
    """Return whether other programs took so much processor time that a run's times prove nothing."""
    return disturbance(record.seen.plays) > QUIET_CORES


def traces(record: RunRecord) -> Iterator[str]:
    """Say for every trace how skewed it is and how much memory it needs."""
    yield "## Traces"
    yield ""
    for about in record.abouts:
        size = (
            f"{about.live_tokens * record.token_bytes / MIB:,.0f} MiB of key-value tensors"
            if record.token_bytes
            else f"{about.live_tokens:,} tokens"
        )
        count = about.left_out
        left = f" {count} questions were left out, as their prompts do not fit." if count else ""
        yield (
            f"- **{about.trace}**: {about.skew}. Prompts of {about.prompt_tokens:.0f} tokens, answers "
            f"of {about.answer_tokens:.1f} (as long as the accepted ones); all it asks for takes "
            f"{size}.{left}"
        )
    yield ""


def method(record: RunRecord) -> Iterator[str]:
    """Say how the figures came about, and what was left out."""
    sizes = record.sizes
    yield "## How it was measured"
    yield ""
    yield (
        f"Every system is a process of its own with the same LangChain chain on the same Faiss index, "
        f"the same prompts, model and arguments (blocks of 32 tokens on a CPU, at most "
        f"{sizes.at_once} requests computed together, context {sizes.context_tokens}), "
        f"{sizes.device_bytes / MIB:.0f} MiB of device cache and, those that have one, "
        f"{sizes.host_bytes / MIB:.0f} MiB of host cache. All of a group are up at the same time; a "
        "play goes to one after the other, in another order each round, with the same questions at the "
        "same times. Stock vLLM is its asynchronous engine behind LangChain's own FAISS retriever and a "
        "client without a line of RAGCache. On the CPU platform vLLM's own host offload refuses to "
        "run; there its manager and policies are used with our copying worker."
    )
    yield ""
    yield (
        "TTFT counts from the moment a question arrives, search and queueing included, to the first "
        "piece out of the chain. Questions' vectors are made beforehand. Caches are filled by earlier "
        "requests of the trace first, with answers of one token; what is counted comes after. Capacity "
        "is what vLLM without a cache completes in a second, one at a time; arrivals are Poisson. Above "
        "its capacity a system's TTFT grows with the length of the play, so that ratios there say that "
        "it is saturated, not by how much. A ratio is the median of the rounds; its range resamples "
        "starts, rounds within each, and requests within those, each with its counterpart."
    )
    yield ""
    if record.left_out:
        yield "Left out:"
        yield ""
        yield from (f"- {line}" for line in record.left_out)
        yield ""
