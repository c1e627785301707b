"""The cost profile: T(cached, computed), the seconds a prefill takes on one model and machine.

Units: tokens and seconds. Within the measured grid T is interpolated bilinearly, past its edges
linearly. The profile tells how long it would take to compute a document again, and whether loading it
is quicker.
Source: RAGCache, §5.1 (cost estimation, Algorithm 1 lines 6-8).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

FORMAT = "ragcache-cost-profile"
FORMAT_VERSION = 1
DEFAULT_MODEL = "no model: the default formula"
_MEASURE = "measure one with `ragcache profile`"


class UnusableProfile(ValueError):
    """The file is not a cost profile, is damaged, or was measured on another model or machine."""


@dataclass(frozen=True, slots=True)
class CostProfile:
    """A grid of measured prefill times, and T between and beyond its points.

    cached_tokens, computed_tokens: the measured lengths, rising.
    seconds: one row for each of cached_tokens; in each row, one time for each of computed_tokens.
    model, dtype: as the engine's configuration spells them.
    hardware, vllm_version: free text, compared character by character.
    block_tokens: tokens in a block of the measured engine; its cached tokens come in whole blocks.
    measured_on: a date, for the reader; None if unknown.
    """

    model: str
    dtype: str
    hardware: str
    vllm_version: str
    block_tokens: int
    cached_tokens: tuple[int, ...]
    computed_tokens: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    measured_on: str | None = None

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ValueError(f"a block has at least one token, got {self.block_tokens}")
        if len(self.cached_tokens) < 1 or len(self.computed_tokens) < 2:
            raise ValueError("a grid has at least one cached and two computed lengths")
        for lengths in (self.cached_tokens, self.computed_tokens):
            if lengths[0] < 0 or any(low >= high for low, high in pairwise(lengths)):
                raise ValueError(f"lengths rise from 0 or more, got {lengths}")
        if len(self.seconds) != len(self.cached_tokens) or any(
            len(row) != len(self.computed_tokens) for row in self.seconds
        ):
            raise ValueError("the grid needs one time for each pair of lengths")
        if any(not math.isfinite(time) or time < 0 for row in self.seconds for time in row):
            raise ValueError("times are finite and not negative")

    def prefill_s(self, cached: float, computed: float) -> float:
        """Return T(cached, computed) in seconds, never negative.

        With more computed tokens, T falls only where the measurements fall. Past the upper edges T
        never falls: a falling slope there is noise. For 0 computed tokens, T extrapolates from the two
        shortest measured lengths to the fixed cost of a step; it is at least 0.
        """
        at, share = _locate(self.computed_tokens, computed)
        start, end = self._neighbour_times(cached, at)
        rise = end - start
        if share > 1:
            return end + (share - 1) * max(0.0, rise)
        return max(0.0, start + share * rise)

    def _neighbour_times(self, cached: float, at: int) -> tuple[float, float]:
        """Return the times of computed lengths number `at` and `at` + 1, for one cached length."""
        if len(self.cached_tokens) > 1:
            below, share = _locate(self.cached_tokens, cached)
            if 0 <= share <= 1:  # nearly always; this runs several times for each request
                low, high = self.seconds[below], self.seconds[below + 1]
                return (
                    low[at] + share * (high[at] - low[at]),
                    low[at + 1] + share * (high[at + 1] - low[at + 1]),
                )
        row = self._row_at(cached)
        return row[at], row[at + 1]

    def _row_at(self, cached: float) -> Sequence[float]:
        """Return the times of all computed lengths, for one cached length."""
        if len(self.cached_tokens) == 1:
            return self.seconds[0]
        at, share = _locate(self.cached_tokens, cached)
        low, high = self.seconds[at], self.seconds[at + 1]
        if 0 <= share <= 1:
            return [a + share * (b - a) for a, b in zip(low, high, strict=True)]
        if share > 1:
            row = [b + (share - 1) * max(0.0, b - a) for a, b in zip(low, high, strict=True)]
        else:
            row = [max(0.0, a + share * (b - a)) for a, b in zip(low, high, strict=True)]
        # Each computed length was extrapolated along its own slope, so the times of a longer one may
        # have come out below those of a shorter one.
        for place in range(1, len(row)):
            if low[place] >= low[place - 1] and high[place] >= high[place - 1]:
                row[place] = max(row[place], row[place - 1])
        return row

    @classmethod
    def default(cls) -> CostProfile:
        """Return a profile for when nothing was measured.

        A prefill takes 0.1 ms for each computed token, and 10 ns for each pair of a computed token and
        a token it attends to. The first term is linear, because each token passes once through the
        weights; the second is quadratic, because each token attends to all before it. The first term
        fits a model of about 7 B weights on one GPU. Policies only compare costs with each other, so
        for them only the ratio of the two terms matters. Measure a profile to decide well between
        loading and computing.
        """
        # T is linear in the cached tokens, so two cached lengths are exact. Computed lengths double
        # from 64.
        cached, computed = (0, 4096), (0, *(64 << step for step in range(12)))
        return cls(
            model=DEFAULT_MODEL,
            dtype="",
            hardware="",
            vllm_version="",
            block_tokens=1,
            cached_tokens=cached,
            computed_tokens=computed,
            seconds=tuple(
                tuple(1e-4 * new + 1e-8 * new * (old + new / 2) for new in computed)
                for old in cached
            ),
        )

    # -- as a file ---------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the profile as the text of a file."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "model": self.model,
            "dtype": self.dtype,
            "hardware": self.hardware,
            "vllm_version": self.vllm_version,
            "block_tokens": self.block_tokens,
            "cached_tokens": self.cached_tokens,
            "computed_tokens": self.computed_tokens,
            "seconds": self.seconds,
        }
        if self.measured_on is not None:
            content["measured_on"] = self.measured_on
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CostProfile:
        """Read a profile. Raises UnusableProfile unless the text is what `to_json` wrote."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnusableProfile(
                f"not a cost profile, or damaged ({error}); {_MEASURE}"
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UnusableProfile(f"not a cost profile; {_MEASURE}")
        if content.get("version") != FORMAT_VERSION:
            raise UnusableProfile(
                f"a cost profile of format version {content.get('version')!r}, and this RAGCache "
                f"reads version {FORMAT_VERSION}; {_MEASURE}"
            )
        try:
            return cls(
                **{
                    name: _require_type(content[name], str)
                    for name in ("model", "dtype", "hardware", "vllm_version")
                },
                block_tokens=_require_type(content["block_tokens"], int),
                cached_tokens=_require_types(content["cached_tokens"], int),
                computed_tokens=_require_types(content["computed_tokens"], int),
                seconds=tuple(
                    _require_types(row, int, float)
                    for row in _require_type(content["seconds"], list)
                ),
                measured_on=_require_type(content.get("measured_on"), str, type(None)),
            )
        except KeyError as error:
            raise UnusableProfile(f"a damaged cost profile: no {error}; {_MEASURE}") from error
        except (ValueError, OverflowError) as error:
            raise UnusableProfile(f"a damaged cost profile: {error}; {_MEASURE}") from error

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str,
        dtype: str | None = None,
        hardware: str | None = None,
        vllm_version: str | None = None,
    ) -> CostProfile:
        """Read a profile from a file, and check that it was measured on these; None skips a check.

        Raises UnusableProfile for a file that is not a profile, or that was measured on something else;
        OSError if the file cannot be read.
        """
        try:
            profile = cls.from_json(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise UnusableProfile(f"{path}: not a cost profile; {_MEASURE}") from error
        except UnusableProfile as error:
            raise UnusableProfile(f"{path}: {error}") from error
        wanted = {
            "model": model,
            "dtype": dtype,
            "hardware": hardware,
            "vllm_version": vllm_version,
        }
        for name, value in wanted.items():
            measured = getattr(profile, name)
            if value is not None and measured != value:
                raise UnusableProfile(
                    f"{path} was measured on {name} {measured!r}, not on {value!r}; {_MEASURE}"
                )
        return profile


def blocks_to_load(
    profile: CostProfile,
    *,
    cached_tokens: int,
    computed_tokens: int,
    loadable_blocks: int,
    block_tokens: int,
    block_bytes: int,
    bandwidth_bytes_per_s: float,
    latency_s: float = 0.0,
) -> int:
    """Choose how many of a request's next blocks to load, so that loading and prefill end soonest.

    cached_tokens: tokens already on the device.
    computed_tokens: tokens to prefill if nothing is loaded, including the question.
    loadable_blocks: how many blocks a slower tier has right after the cached tokens, without a gap.
    latency_s: fixed time of one load, however many blocks it has.

    On a tie, fewer blocks are loaded. Loading none is always among the choices, so loading never makes
    a request slower than the profile predicts without it.
    Raises ValueError if there are more tokens to load than to compute.
    """
    if loadable_blocks * block_tokens > computed_tokens:
        raise ValueError("there are more tokens to load than the request has left to compute")

    def done_s(blocks: int) -> float:
        loaded = blocks * block_tokens
        computing_s = profile.prefill_s(cached_tokens + loaded, computed_tokens - loaded)
        if not blocks:
            return computing_s
        return latency_s + blocks * block_bytes / bandwidth_bytes_per_s + computing_s

    # Between two grid lines, T has the form a + b*cached + c*computed + d*cached*computed. Each loaded
    # block makes computed tokens cached ones. Where d >= 0 (a token costs more to compute, the more is
    # cached), the time is therefore concave in the loaded blocks: it is least at a grid line or an end.
    choices = {0, loadable_blocks}
    lines = [line - cached_tokens for line in profile.cached_tokens]
    lines += [computed_tokens - line for line in profile.computed_tokens]
    for tokens in lines:
        blocks = tokens // block_tokens
        choices.update(near for near in (blocks, blocks + 1) if 0 < near < loadable_blocks)
    return min(sorted(choices), key=done_s)


def _locate(lengths: Sequence[int], length: float) -> tuple[int, float]:
    """Return the number of the interval for a length, and the share of that interval below the length.

    The share is negative or above 1 for a length outside all intervals.
    """
    at = min(max(bisect_right(lengths, length) - 1, 0), len(lengths) - 2)
    return at, (length - lengths[at]) / (lengths[at + 1] - lengths[at])


def _require_type(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f"{value!r} stands where {' or '.join(k.__name__ for k in kinds)} belongs")
    return value


def _require_types(values: Any, *kinds: type) -> tuple[Any, ...]:
    return tuple(_require_type(value, *kinds) for value in _require_type(values, list))
