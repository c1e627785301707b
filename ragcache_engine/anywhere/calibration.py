"""Calibrations: the recompute ratio that `ragcache calibrate` found good enough for one model.

A calibration is a file in the cache home, beside the model's cost profiles. It holds for one model, with
the arguments that change its numbers, one dtype, chat template and kind of donors, all as the
configuration spells them; its name tells them apart.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from ragcache_engine.cache_home import cache_home
from ragcache_engine.config import EngineConfig
from ragcache_engine.errors import UnusableCalibration

logger = logging.getLogger(__name__)

UNCALIBRATED = 0.1
"""The recompute ratio where nothing was measured. More than a tenth brought little on any set."""

FORMAT = "ragcache-calibration"
FORMAT_VERSION = 1
SUFFIX = ".calibration.json"
OWN_TEMPLATE = "the model's own"
LONGEST_NAME = 80
OTHER_NAMES = {"half": "float16", "float": "float32"}
"""Data types that vLLM knows by two names."""

MODEL_ARGS = (
    "revision",
    "quantization",
    "hf_overrides",
    "kv_cache_dtype",
    "load_format",
    "model_impl",
)
"""The arguments of vLLM, beside the dtype, with which a model of one name computes other numbers."""
DEFAULTS: tuple[Any, ...] = (None, {}, "auto", "main")
"""What such an argument says where it changes nothing."""


@dataclass(frozen=True, slots=True)
class CalibrationKey:
    """What a calibration holds for.

    model: a hub id, or a folder's whole path. dtype: as vLLM spells it. chat_template: a digest of its
    text, or OWN_TEMPLATE. donors: as in EngineConfig. model_args: those of MODEL_ARGS that are set, as
    JSON; empty without any.
    """

    model: str
    dtype: str
    chat_template: str
    donors: str
    model_args: str = ""

    @classmethod
    def of(cls, config: EngineConfig) -> CalibrationKey:
        """Return what a calibration for this engine has to hold for."""
        folder = Path(config.model).expanduser()
        dtype = str(config.vllm_args.get("dtype", "auto")).removeprefix("torch.")
        template = config.chat_template
        return cls(
            model=str(folder.resolve()) if folder.is_dir() else config.model,
            dtype=OTHER_NAMES.get(dtype, dtype),
            chat_template=_digest(template) if template else OWN_TEMPLATE,
            donors=config.donors,
            model_args=_write_model_args(config.vllm_args),
        )

    @property
    def path(self) -> Path:
        """The file of this calibration, whether it is there or not."""
        readable = f"{self.model.strip('./')[-LONGEST_NAME:]}-{self.dtype}-{self.donors}"
        name = re.sub(r"[^\w.-]+", "--", readable).strip("-")
        digest = _digest("\n".join(filter(None, asdict(self).values())))
        return cache_home() / "profiles" / f"{name}-{digest}{SUFFIX}"

    def describe(self) -> str:
        """Return the key in words."""
        return (
            f"model {self.model!r}, dtype {self.dtype!r}, chat template {self.chat_template!r}, donors "
            f"{self.donors!r}" + (f", model arguments {self.model_args}" if self.model_args else "")
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """A recompute ratio, and the measurements it stands on.

    rouge_l: the mean likeness of answers at this ratio to exact ones, 0 to 1. lower_bound: of its 95%
    confidence interval. noise: the mean likeness of two exact runs to each other. target: the share of
    what exact answers reach that a lower bound had to reach. questions: how many answers were compared.
    measured_on: a date. right, exact_right: the shares of right answers, at this ratio and exactly, where
    they decided; None where likeness did.
    Raises ValueError for values that no measurement gives.
    """

    key: CalibrationKey
    recompute_ratio: float
    rouge_l: float
    lower_bound: float
    noise: float
    target: float
    questions: int
    measured_on: str = ""
    right: float | None = None
    exact_right: float | None = None

    def __post_init__(self) -> None:
        shares = ["recompute_ratio", "rouge_l", "lower_bound", "noise", "target"]
        if self.right is not None:
            shares += ["right", "exact_right"]
        for name in shares:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is no number: {value!r}")
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise ValueError(f"{name} is from 0 to 1, got {value}")
        if type(self.questions) is not int or self.questions < 1:
            raise ValueError(f"questions is a whole number from 1, got {self.questions!r}")

    @property
    def least_rouge_l(self) -> float:
        """The mean likeness below which answers are no longer what was measured.

        Where right answers decided, likeness had nothing to reach: then it is a share of what it was.
        Served answers are computed in company, the exact ones that they are compared with alone: that
        costs likeness as `noise` does.
        """
        return self.target * self.noise * (1.0 if self.right is None else self.lower_bound)

    def to_json(self) -> str:
        """Return the calibration as the text of a file."""
        content = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Read a calibration. Raises ValueError unless the text is what `to_json` wrote."""
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("it is no calibration")
        if content.get("version") != FORMAT_VERSION:
            raise ValueError(f"its format has version {content.get('version')!r}")
        content = {
            "right": None,
            "exact_right": None,
            **content,
        }  # earlier versions had no right answers
        named = {field.name: _take(content, field.name) for field in fields(cls)}
        key = named.pop("key")
        if not isinstance(key, dict):
            raise ValueError("its key is damaged")
        key.setdefault("model_args", "")  # files of earlier versions are for models without any
        names = [field.name for field in fields(CalibrationKey)]
        return cls(key=CalibrationKey(**{name: str(_take(key, name)) for name in names}), **named)


def _write_model_args(vllm_args: Mapping[str, Any]) -> str:
    """Return the arguments that change the model's numbers, always in the same words."""
    changed = {name: vllm_args[name] for name in MODEL_ARGS if vllm_args.get(name) not in DEFAULTS}
    return json.dumps(changed, sort_keys=True, default=_name_of) if changed else ""


def _name_of(value: Any) -> str:
    """Name what JSON cannot say, such as a function that changes the model's configuration."""
    return str(getattr(value, "__qualname__", value))


def find_calibration(config: EngineConfig) -> Calibration | None:
    """Return the calibration that gives this engine its ratio; None if there is none, or no need of one.

    Raises UnusableCalibration for a file that cannot be used.
    """
    if not _needs_ratio(config) or config.donors == "any":
        return None
    key = CalibrationKey.of(config)
    try:
        text = key.path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableCalibration(
            f"the calibration {key.path} cannot be read ({error}): make it readable, {_or_else(key)}"
        ) from error
    try:
        found = Calibration.from_json(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise UnusableCalibration(
            f"the calibration {key.path} is damaged ({error}): delete it, and {_or_else(key)}"
        ) from error
    if found.key != key:
        raise UnusableCalibration(
            f"the calibration {key.path} is for {found.key.describe()}, and this engine has "
            f"{key.describe()}: delete it, and {_or_else(key)}"
        )
    return found


def with_ratio(config: EngineConfig, found: Calibration | None) -> EngineConfig:
    """Return the configuration with a recompute ratio: its own, the calibration's, or UNCALIBRATED.

    found: what find_calibration returned. Warns where nothing was measured.
    """
    if not _needs_ratio(config):
        return config
    if found is None:
        logger.warning("%s", _describe_missing(config))
    ratio = found.recompute_ratio if found else UNCALIBRATED
    return config.model_copy(update={"recompute_ratio": ratio})


def _needs_ratio(config: EngineConfig) -> bool:
    return config.reuse == "anywhere" and config.recompute_ratio is None


def _describe_missing(config: EngineConfig) -> str:
    begin = f"recompute_ratio is {UNCALIBRATED}, which nobody measured for this model: "
    if config.donors == "any":
        return f'{begin}with donors="any" nothing can be, so look at your own answers'
    key = CalibrationKey.of(config)
    near = "".join(f"; there is one for {other.describe()}" for other in _keys_of(key.model))
    return f"{begin}{_or_else(key)}{near}"


def _or_else(key: CalibrationKey) -> str:
    return (
        f"run `ragcache calibrate {key.model} --donors {key.donors} --questions LOG --corpus FOLDER`, "
        f"or choose a ratio by hand: EngineConfig(recompute_ratio=...)"
    )


def _keys_of(model: str) -> list[CalibrationKey]:
    """Return what the readable calibrations of a model hold for."""
    keys = []
    for path in sorted((cache_home() / "profiles").glob(f"*{SUFFIX}")):
        try:
            keys.append(Calibration.from_json(path.read_text(encoding="utf-8")).key)
        except (OSError, ValueError, TypeError, RecursionError):
            continue
    return [key for key in keys if key.model == model]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


def _take(content: dict[str, Any], name: str) -> Any:
    if name not in content:
        raise ValueError(f"it has no {name}")
    return content[name]
