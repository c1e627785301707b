"""Keeps searches of a Faiss index apart from changes to it.

Searches may run side by side, says Faiss, and none while vectors are added or removed: the arrays that it
reads may move, and then the process crashes. The frameworks' stores do not see to that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from ragcache_integrations.shared_lock import SharedLock

CHANGES = ("add", "add_with_ids", "remove_ids", "merge_from", "reset", "train")
"""The methods of a faiss.Index that change what a search reads."""

_LOCK_NAME = "_ragcache_lock"


def guard_index(index: Any) -> SharedLock:
    """Make changes to this index object wait for searches that hold the lock. Return the lock.

    A search holds it with `lock.reading()`. All who guard the same object share one lock. It is kept on
    the object, so it holds for whoever changes the object by the methods in CHANGES. Copies of the object
    are not guarded.
    """
    try:
        attributes = vars(index)
    except TypeError:  # an object without a place for the lock; its changes cannot be held back
        return SharedLock()
    # Not setattr, because Faiss refuses names that its classes do not have. setdefault is atomic.
    lock: SharedLock = attributes.setdefault(_LOCK_NAME, SharedLock())
    for name in CHANGES:
        if name not in attributes and callable(method := getattr(type(index), name, None)):
            attributes.setdefault(name, _change_alone(weakref.ref(index), method, lock))
    return lock


def _change_alone(
    index: Callable[[], Any], method: Callable[..., Any], lock: SharedLock
) -> Callable[..., Any]:
    # A weak reference, so that a large index is freed as soon as its last user lets go of it.
    @wraps(method)
    def change(*args: Any, **kwargs: Any) -> Any:
        with lock.writing():
            return method(index(), *args, **kwargs)

    return change
