"""Remembers which model of ours stands for which stock model, within one call of `accelerate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ragcache_integrations.acceleration.stock_options import CannotCarry

Ours = TypeVar("Ours")


class MadeModels(Generic[Ours]):
    """Makes one model of ours for each stock model, however many parts of a chain share it.

    make: returns our model for a stock one, or raises CannotCarry.
    """

    def __init__(self, make: Callable[[Any], Ours]) -> None:
        self._make = make
        # The originals are kept too, so that no other object gets their ids meanwhile.
        self._made: dict[int, tuple[object, Ours | CannotCarry]] = {}

    def make_once(self, stock: object) -> Ours | CannotCarry:
        """Return our model for a stock one, or why there is none; the same at every call."""
        if id(stock) not in self._made:
            try:
                self._made[id(stock)] = stock, self._make(stock)
            except CannotCarry as reason:
                self._made[id(stock)] = stock, reason
        return self._made[id(stock)][1]
