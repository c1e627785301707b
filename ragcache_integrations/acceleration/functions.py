"""The objects that a function uses: those of its closure, its globals, and the object it is bound to.

`accelerate` cannot change a function. But it can tell which retrievers and models stay in there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

FUNCTIONS = (FunctionType, MethodType, partial)
"""The types of functions that can be looked into."""


def objects_used_by(function: Callable[..., Any]) -> Iterator[object]:
    """Yield the objects that a function may use. Functions in its closure are looked into as well.

    The globals count by name for the function itself only, because those of a library's function are
    no part of a chain.
    """
    yield from _used_by(function, set(), with_globals=True)


def _used_by(function: Any, seen: set[int], with_globals: bool) -> Iterator[object]:
    if id(function) in seen:
        return
    seen.add(id(function))
    for value in _values_of(function, with_globals):
        if isinstance(value, FUNCTIONS):
            yield from _used_by(value, seen, with_globals=isinstance(function, partial))
        else:
            yield value


def _values_of(function: Any, with_globals: bool) -> Iterator[object]:
    if isinstance(function, partial):
        yield from (function.func, *function.args, *function.keywords.values())
    elif isinstance(function, MethodType):
        yield function.__self__
        yield from getattr(function.__self__, "__dict__", {}).values()
        yield from _values_of(function.__func__, with_globals)
    elif isinstance(function, FunctionType):
        yield from _closure_of(function)
        yield from function.__defaults__ or ()
        if with_globals:
            names = _names_in(function.__code__)
            yield from (
                function.__globals__[name] for name in names if name in function.__globals__
            )


def _closure_of(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue


def _names_in(code: CodeType) -> set[str]:
    """Return the names that a function's code and the functions defined in it look up."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))
