"""How the scheduler times its requests for observers."""

from __future__ import annotations

from itertools import count

from ragcache_engine.tiers.provenance import (
    PromptSources,
    Reason,
    ReuseReport,
    TracedDocument,
)
from ragcache_engine.tiers.served_requests import REMEMBERED, ServedRequests
from ragcache_engine.values import DocumentReuse


def served_every_second() -> ServedRequests:
    seconds = count()
    return ServedRequests(lambda: float(next(seconds)), lambda: 1000.0)


def test_a_request_is_timed_from_its_arrival():
    served = served_every_second()
    served.arrive("r", 300, [(64, None), (200, "a"), (300, "b")])
    assert (served.waiting, served.running) == (1, 0)
    served.admit("r")
    assert (served.waiting, served.running) == (0, 1)
    assert served.unanswered == {"r"}
    served.answer("r")
    assert not served.unanswered
    sources = PromptSources(((160, "device"), (200, "disk")), {"b": Reason.EVICTED})
    served.end("r", {"device": 160, "host": 0, "disk": 40}, sources, completed=True)
    (request,) = served.recent
    assert (request.waited_s, request.first_token_s, request.total_s) == (1.0, 2.0, 3.0)
    assert request.ended_at == 1000.0
    assert request.documents == (
        TracedDocument("a", 136, {"device": 96, "disk": 40}),
        TracedDocument("b", 100, why="it was evicted"),
    )
    assert (served.waiting, served.running) == (0, 0)


def test_what_a_request_borrowed_is_told_apart_from_what_was_computed():
    served = served_every_second()
    served.arrive("r", 300, [(100, "a"), (200, "b"), (300, "c")])
    documents = (
        DocumentReuse("a", 100, "device"),
        DocumentReuse("b", 100, "host", borrowed=74, recomputed=26),
        DocumentReuse("c", 100, None, borrowed=74, recomputed=26),
    )
    sources = PromptSources(((96, "device"),), {"c": Reason.FIRST_TIME})
    served.end("r", {"device": 96}, sources, completed=True, reuse=ReuseReport(documents))
    assert served.recent[0].documents == (
        TracedDocument("a", 100, {"device": 96}, why="its end shares a block with what follows"),
        TracedDocument("b", 100, borrowed={"host": 74}, recomputed=26),
        TracedDocument("c", 100, recomputed=26, why="no request had it before"),
    )


def test_preempted_requests_count_their_first_admission():
    served = served_every_second()
    served.arrive("r", 10, [])
    served.admit("r")
    served.admit("r")
    served.end("r", None, None, completed=True)
    assert served.recent[0].waited_s == 1.0


def test_aborted_requests_and_strangers_leave_nothing():
    served = served_every_second()
    served.arrive("aborted", 10, [])
    served.end("aborted", None, None, completed=False)
    served.end("never seen", None, None, completed=True)
    served.admit("never seen")
    served.answer("never seen")
    assert not served.recent
    assert not served.unanswered
    assert served.waiting == served.running == 0


def test_only_the_last_requests_are_remembered():
    served = served_every_second()
    for number in range(REMEMBERED + 3):
        served.arrive(str(number), 10, [])
        served.end(str(number), None, None, completed=True)
    assert served.recent[0].name == "3"
