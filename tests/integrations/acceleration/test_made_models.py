"""One model of ours for each stock model."""

from __future__ import annotations

from ragcache_integrations.acceleration import CannotCarry, MadeModels


class Stock:
    """Two of them are equal, and still two models."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stock)

    __hash__ = None  # type: ignore[assignment]  # many models cannot be hashed


def test_a_stock_model_that_stands_twice_becomes_one_model():
    made: MadeModels[list[object]] = MadeModels(lambda stock: [stock])
    stock = Stock()
    assert made.make_once(stock) is made.make_once(stock)


def test_equal_stock_models_become_a_model_each():
    made: MadeModels[list[object]] = MadeModels(lambda stock: [stock])
    assert made.make_once(Stock()) is not made.make_once(Stock())


def test_a_model_that_cannot_be_carried_is_tried_once():
    tried = []

    def refuse(stock: object) -> list[object]:
        tried.append(stock)
        raise CannotCarry("it has another tokenizer")

    made: MadeModels[list[object]] = MadeModels(refuse)
    stock = Stock()
    first, second = made.make_once(stock), made.make_once(stock)
    assert first is second
    assert isinstance(first, CannotCarry)
    assert tried == [stock]
