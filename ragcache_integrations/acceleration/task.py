"""One run of `accelerate`: what the caller asked for, and what was swapped and left so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ragcache_engine import InvalidArgument, RAGCacheEngine
from ragcache_integrations.acceleration.model_names import is_model_of
from ragcache_integrations.acceleration.report import AccelerationReport, LeftPart, SwappedPart
from ragcache_integrations.acceleration.stock_options import check_options
from ragcache_integrations.engine_field import check_engine

ModelChoice: TypeAlias = Literal["same", "all", "none"]

KEPT = "you asked to keep it"


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be swapped, and for what.

    models: "same" swaps models that ask for the engine's model, or name none; "all" swaps every model;
      "none" swaps none. retrievers: whether to swap retrievers. keep: objects that stay as they are.
    options: sampling parameters of all swapped models, which replace those that they had.
    Raises InvalidArgument.
    """

    engine: RAGCacheEngine
    models: ModelChoice = "same"
    retrievers: bool = True
    keep: Sequence[object] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_engine(self.engine)
        if self.models not in ("same", "all", "none"):
            raise InvalidArgument(
                f"models={self.models!r}: give 'same', 'all' or 'none', or keep=[model] for single ones"
            )
        check_options(self.options)

    def is_kept(self, part: object) -> bool:
        return any(part is kept for kept in self.keep)

    def reason_to_leave_model(self, name: str | None) -> str | None:
        """Return why a model of this name stays; None if it is to be swapped."""
        if self.models == "same" and name and not is_model_of(self.engine.config, name):
            return (
                f"it asks for the model {name!r}, and the engine runs {self.engine.config.model!r}; "
                f"models='all' swaps it nevertheless"
            )
        return None


class AccelerationTask:
    """Follows the rules through a chain, and notes what was swapped and left."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._notes: list[SwappedPart | LeftPart] = []

    def note_swap(self, place: str, before: str, after: str) -> None:
        self._notes.append(SwappedPart(place or "the top", before, after))

    def note_left(self, place: str, part: str, reason: str, is_wanted: bool = False) -> None:
        note = LeftPart(place or "the top", part, reason, is_wanted)
        if note not in self._notes:
            self._notes.append(note)

    def note_inside(self, inside: AccelerationReport, place: str, reason: str) -> None:
        """Note as left what a trial of its own found in a part that cannot be changed.

        inside: the trial's report. reason: why the part cannot be changed.
        """
        for swapped in inside.swapped:
            self.note_left(place, swapped.before, f"{reason}; swap it there yourself")
        for left in inside.left:
            self.note_left(place, left.part, left.reason, left.is_wanted)

    def copy_or_leave(
        self, place: str, part: object, make: Callable[[], Any], notes_before: int
    ) -> Any:
        """Return what `make` returns. If it fails, leave the part with all that is in it, and say why.

        notes_before: `notes_count` before the parts of this part were looked at.
        """
        try:
            return make()
        except Exception as error:
            lost = [note for note in self._notes[notes_before:] if isinstance(note, SwappedPart)]
            del self._notes[notes_before:]
            for note in lost:
                reason = f"{type(part).__name__}, which holds it, cannot be copied: {error!r}"
                self.note_left(note.place, note.before, reason)
            return part

    @property
    def notes_count(self) -> int:
        return len(self._notes)

    def report(self) -> AccelerationReport:
        return AccelerationReport(
            tuple(note for note in self._notes if isinstance(note, SwappedPart)),
            tuple(note for note in self._notes if isinstance(note, LeftPart)),
        )


def describe_model(model: Any) -> str:
    """Return a model's class, and how it samples, for the report."""
    shown = ("temperature", "max_new_tokens", "stop")
    values = {name: getattr(model, name) for name in shown}
    told = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
    return f"{type(model).__name__}({told})"
