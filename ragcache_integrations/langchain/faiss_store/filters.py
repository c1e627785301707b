"""Metadata filters: from what the user writes to a function of one document's metadata.

    {"topic": "tides"}                              equal
    {"topic": ["tides", "sky"]}                     any of these
    {"year": {"$gte": 1990, "$lt": 2000}}           operators; all of them must hold
    {"author.name": "Ada"}                          a field inside a field
    {"$or": [{"year": 1999}, {"$not": {"topic": "sky"}}]}
    lambda metadata: len(metadata["title"]) < 40    anything else

If a filter has several keys, all of them must hold. Operators: $eq, $ne (or $neq), $gt, $gte, $lt,
$lte, $in, $nin, $contains (a list or a string that holds the value), $exists, $not; and $and, $or,
$not around whole filters.

A missing field equals nothing, not even None, and is neither greater nor less than anything, so $ne,
$nin and $not hold for it. Values of different types are not equal and cannot be compared: True is not
1, and "10" is not greater than 9. But 1 equals 1.0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ragcache_integrations.langchain.faiss_store.errors import InvalidFilter

Metadata = Mapping[str, Any]
Predicate = Callable[[Metadata], bool]
Filter = Mapping[str, Any] | Callable[[dict[str, Any]], bool]

_MISSING = object()
_Test = Callable[[Any], bool]
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def compile_filter(filter: Filter) -> Predicate:
    """Return the filter as one function. Raises InvalidFilter before it sees any document."""
    if callable(filter):
        return filter  # type: ignore[return-value]
    if not isinstance(filter, Mapping):
        raise InvalidFilter(
            f"a filter is a dict or a function of the metadata, got {type(filter).__name__}"
        )
    return _all_of([_compile_clause(key, value) for key, value in filter.items()])


def _compile_clause(key: str, value: Any) -> Predicate:
    if not isinstance(key, str):
        raise InvalidFilter(f"a filter's keys are field names and operators, got {key!r}")
    if not key.startswith("$"):
        return _test_field(key, _compile_condition(value))
    if key == "$not":
        inner = compile_filter(value)
        return lambda metadata: not inner(metadata)
    if key in ("$and", "$or"):
        parts = [compile_filter(part) for part in _require_list(key, value)]
        return _all_of(parts) if key == "$and" else _any_of(parts)
    raise InvalidFilter(
        f"{key!r} is not known around filters; use $and, $or or $not, or write "
        f"{{field: {{{key!r}: ...}}}} if it belongs to a field"
    )


def _test_field(name: str, test: _Test) -> Predicate:
    path = name.split(".")

    def holds(metadata: Metadata) -> bool:
        value = metadata.get(name, _MISSING)
        if value is _MISSING and len(path) > 1:
            value = _get_nested(metadata, path)
        return test(value)

    return holds


def _get_nested(value: Any, path: list[str]) -> Any:
    for step in path:
        if not isinstance(value, Mapping) or step not in value:
            return _MISSING
        value = value[step]
    return value


def _compile_condition(wanted: Any) -> _Test:
    """Return the test for the value of one field."""
    if isinstance(wanted, (list, tuple, set, frozenset)):
        return _compile_membership(wanted)
    if isinstance(wanted, Mapping) and any(str(key).startswith("$") for key in wanted):
        tests = [_compile_operator(str(name), operand) for name, operand in wanted.items()]
        if len(tests) == 1:
            return tests[0]
        return lambda value: all(test(value) for test in tests)
    return lambda value: _is_equal(value, wanted)


def _compile_operator(name: str, operand: Any) -> _Test:
    if name in ("$eq", "$ne", "$neq"):
        equal = name == "$eq"
        return lambda value: _is_equal(value, operand) == equal
    if name in ("$in", "$nin"):
        within, inside = _compile_membership(_require_list(name, operand)), name == "$in"
        return lambda value: within(value) == inside
    if name == "$exists":
        if not isinstance(operand, bool):
            raise InvalidFilter(f"$exists takes True or False, got {operand!r}")
        return lambda value: (value is not _MISSING) == operand
    if name == "$not":
        inner = _compile_condition(operand)
        return lambda value: not inner(value)
    if name == "$contains":
        return lambda value: _contains(value, operand)
    if name in _COMPARISONS:
        comparison = _COMPARISONS[name]
        return lambda value: _compare(comparison, value, operand)
    known = ["$eq", "$ne", "$in", "$nin", *_COMPARISONS, "$contains", "$exists", "$not"]
    raise InvalidFilter(f"{name!r} is not known; the operators of a field are {', '.join(known)}")


def _compile_membership(choices: Iterable[Any]) -> _Test:
    choices = list(choices)
    try:
        keys = {_hash_key(choice) for choice in choices}
    except TypeError:  # a choice without a hash, such as a list
        return lambda value: any(_is_equal(value, choice) for choice in choices)

    def is_member(value: Any) -> bool:
        try:
            return _hash_key(value) in keys
        except TypeError:
            return False

    return is_member


def _hash_key(value: Any) -> tuple[bool, Any]:
    return isinstance(value, bool), value


def _is_equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _compare(comparison: Callable[[Any, Any], Any], value: Any, bound: Any) -> bool:
    if value is _MISSING or isinstance(value, bool) or isinstance(bound, bool):
        return False
    try:
        return bool(comparison(value, bound))
    except TypeError:
        return False


def _contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, str):
        return isinstance(wanted, str) and wanted in value
    return isinstance(value, (list, tuple, set, frozenset)) and any(
        _is_equal(item, wanted) for item in value
    )


def _require_list(name: str, value: Any) -> list[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    raise InvalidFilter(f"{name} takes a list, got {value!r}")


def _all_of(parts: list[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    return lambda metadata: all(part(metadata) for part in parts)


def _any_of(parts: list[Predicate]) -> Predicate:
    return lambda metadata: any(part(metadata) for part in parts)
