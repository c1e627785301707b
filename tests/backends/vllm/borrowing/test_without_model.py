"""Borrowing in vLLM's real scheduler, around a model that computes nothing.

Every slot holds a hash of what was computed into it: a copy from a wrong donor, a donor that was
overwritten and an approximate block that an exact request finds all raise WrongTensors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.plan import WhyExact
from ragcache_engine.tiers.wire import LookedUp, RequestMessage

pytestmark = pytest.mark.vllm

SYSTEM = [5] * 37


@pytest.fixture(params=[False, True], ids=["as they are", "packed"])
def borrowing(
    request: pytest.FixtureRequest, engine_with: Callable[..., Any]
) -> Callable[..., Any]:
    """Makes engines that borrow and recompute a tenth, with donors as they are, and with packed ones."""
    sizes = {"device_blocks": 128, "recompute_ratio": 0.1, "packs_donors": request.param}
    return partial(engine_with, **sizes)


def document(name: str, tokens: int = 64) -> list[int]:
    return [crc32(f"{name} {at}".encode()) % 30_000 for at in range(tokens)]


def prompt(
    *names: str, question: int = 1, of_tokens: int = 64
) -> tuple[list[int], list[tuple[int, str | None]]]:
    tokens = list(SYSTEM)
    segments: list[tuple[int, str | None]] = [(len(tokens), None)]
    for name in names:
        tokens += document(name, of_tokens)
        segments.append((len(tokens), name))
        tokens += [11, 11]
        segments.append((len(tokens), None))
    return tokens + [question] * 9, segments


def asked(engine: Any, name: str, *names: str, question: int = 1, **how: Any) -> dict[str, Any]:
    tokens, segments = prompt(*names, question=question)
    engine.ask(name, tokens, segments, **how)
    told = engine.run()[name]
    assert isinstance(told, dict)
    return told


def tiers_of(told: dict[str, Any]) -> list[str | None]:
    return [document["tier"] for document in told["reuse"]["documents"]]


def test_a_document_is_borrowed_wherever_it_stands(borrowing: Callable[..., Any]):
    engine = borrowing()
    assert tiers_of(asked(engine, "one", "a", "b", "c")) == [None, None, None]
    computed = engine.computed_tokens
    told = asked(engine, "two", "b", "c", "a", question=2)
    assert tiers_of(told) == ["device", "device", "device"]
    assert [each["borrowed"] for each in told["reuse"]["documents"]] == [0, 56, 56]
    assert [each["recomputed"] for each in told["reuse"]["documents"]] == [0, 8, 8]
    assert told["tokens"]["device"] == 96  # the system text and the first document, in whole blocks
    assert engine.computed_tokens - computed == 12, "the question, and three tokens before it"


@pytest.mark.parametrize("any_donors", [False, True], ids=["made donors", "any donors"])
def test_an_answer_that_a_stop_string_ends_has_the_account_of_one_that_ends_by_itself(
    borrowing: Callable[..., Any], any_donors: bool
):
    """vLLM's client finds the stop string. It aborts the request, and hears of it no more."""

    def told_of_three(stop: str | None) -> tuple[list[dict[str, Any]], Any, Any]:
        engine = borrowing(host_blocks=64, any_donors=any_donors)
        told = []
        for place, documents in enumerate(["ab", "cd", "acdb"]):
            tokens, segments = prompt(*documents)
            if stop is None:
                engine.ask(f"r{place}", tokens, segments, answer_tokens=3)
                message = engine.run()[f"r{place}"]
            else:
                engine.ask(f"r{place}", tokens, segments, answer_tokens=9, stop=[stop])
                pieces: list[dict[str, Any]] = []
                while len(pieces) < 3:
                    pieces += [
                        one.kv_transfer_params["ragcache"]
                        for one in engine.end_step(*engine.begin_step())
                        if one.new_token_ids and one.request_id == f"r{place}"
                    ]
                engine.abort(f"r{place}")
                assert pieces[0] == pieces[1] == pieces[2], "each token brings it"
                message = pieces[-1]
            told.append({**message, "counters": None} | {"of": message["counters"]})
        requests = [(one.cached, one.documents) for one in engine.scheduler._tiers.served.recent]
        uses = {
            (one.documents, one.uses) for one in engine.cache.snapshot(99, requests=()).documents
        }
        return told, requests, uses

    by_itself, by_string = told_of_three(None), told_of_three("stop")
    of_tokens = (
        "device_tokens",
        "host_tokens",
        "computed_tokens",
        "borrowed_tokens",
        "donor_tokens",
    )
    for one, other in zip(by_itself[0], by_string[0], strict=True):
        counted, same = one.pop("of"), other.pop("of")
        assert one == other
        assert [counted[name] for name in of_tokens] == [same[name] for name in of_tokens]
    assert by_itself[0][-1]["reuse"] is not None
    assert by_itself[1] == by_string[1], "what observers are told"
    assert by_itself[2] == by_string[2], "what the tree counts as uses"


def test_a_request_that_is_aborted_before_its_first_token_counts_as_no_use(
    borrowing: Callable[..., Any],
):
    engine = borrowing()
    tokens, segments = prompt("a", "b")
    engine.ask("r", tokens, segments, answer_tokens=9, stop=["stop"])
    engine.begin_step()
    engine.abort("r")
    assert not engine.cache.counters.computed_tokens
    assert not engine.scheduler._tiers.served.recent


def test_of_a_new_first_document_only_the_system_text_was_cached(
    borrowing: Callable[..., Any],
):
    engine = borrowing()
    asked(engine, "one", "a", "b")
    told = asked(engine, "two", "c", "a", question=2)
    assert told["tokens"] == {"device": 32, "host": 0, "disk": 0}
    assert tiers_of(told) == [None, "device"]


def test_missing_donors_are_computed_in_one_step_before_the_request(
    borrowing: Callable[..., Any],
):
    engine = borrowing()
    tokens, segments = prompt("a", "b", "c")
    engine.ask("one", tokens, segments)
    steps = 0
    while engine.unfinished:
        engine.step()
        steps += 1
    assert steps <= 3 + bool(engine.packed_donors), "packing takes a step for all of them"


def test_donors_come_back_from_the_host_and_from_the_disk(
    borrowing: Callable[..., Any], tmp_path: Path
):
    engine = borrowing(device_blocks=40, host_blocks=40, disk_bytes=1 << 20, disk_folder=tmp_path)
    asked(engine, "one", "a", "b", "c")
    for number, names in enumerate(["de", "fg", "hi", "jk", "lm"]):
        asked(engine, f"other {number}", *names)
    slower = set(tiers_of(asked(engine, "again", "c", "a", "b", question=2)))
    assert slower & {"host", "disk"}
    assert None not in slower


def test_donors_that_are_loaded_whole_are_not_computed(borrowing: Callable[..., Any]):
    engine = borrowing(device_blocks=40, host_blocks=200)
    asked(engine, "one", "a", "b", "c", "d")
    for number, names in enumerate(["ef", "gh", "ij", "kl", "mn"]):
        asked(engine, f"other {number}", *names)
    before, donors_before = engine.computed_tokens, engine.cache.counters.donor_tokens
    told = asked(engine, "again", "a", "d", "c", "b", question=2)
    assert tiers_of(told) == ["host"] * 4
    assert engine.computed_tokens - before == 12, "the question, and three tokens before it"
    assert engine.cache.counters.donor_tokens == donors_before
    engine.cache.check_idle()


def test_how_long_a_donor_waited_is_measured_though_it_computes_nothing(
    borrowing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    engine = borrowing(device_blocks=40, host_blocks=200)
    asked(engine, "one", "a", "b", "c", "d")
    for number, names in enumerate(["ef", "gh", "ij", "kl", "mn"]):
        asked(engine, f"other {number}", *names)
    admitted: list[tuple[str, bool]] = []
    record = engine.cache.record_admission

    def note(name: str, loaded_tokens: int, now_s: float) -> None:
        admitted.append((name.partition("-")[2], loaded_tokens > 0))
        record(name, loaded_tokens, now_s)

    monkeypatch.setattr(engine.cache, "record_admission", note)
    asked(engine, "again", "a", "d", question=2)
    of_donors = [loads for donor, loads in admitted if donor]
    assert sorted(of_donors) == [False, False, True, True], "each loads, and then goes on"


def test_a_second_life_borrows_from_what_the_first_one_left_on_disk(
    borrowing: Callable[..., Any], tmp_path: Path
):
    disk = {"host_blocks": 60, "disk_bytes": 1 << 20, "disk_folder": tmp_path}
    first = borrowing(**disk)
    asked(first, "one", "a", "b", "c")
    first.close()
    second = borrowing(**disk)
    tiers = tiers_of(asked(second, "one", "c", "b", "a", question=2))
    # Of donors that are packed, the disk has nothing that is exact.
    assert tiers == [None if first.packed_donors else "disk", "disk", "disk"]


def test_a_prompt_that_borrows_is_held_where_all_its_donors_are(
    borrowing: Callable[..., Any], tmp_path: Path
):
    disk = {"host_blocks": 60, "disk_bytes": 1 << 20, "disk_folder": tmp_path}
    contexts = {name: Context("n", document("n")) for name in "bc"}
    first = borrowing(**disk)
    asked(first, "one", "a", "b", "c", contexts=contexts)
    first.close()
    second = borrowing(**disk)
    looked_up = [
        LookedUp(tokens, None, RequestMessage(segments, contexts=contexts, makes_donors=True))
        for tokens, segments in (prompt("c", "b"), prompt("a", "b", "c"), prompt("a", "d"))
    ]
    second.ask("look", [0], looked_up=looked_up)
    assert second.run()["look"]["held"] == [False, True, False]  # nothing has begun with c
    asked(second, "two", "c", "b", contexts=contexts)
    second.ask("look again", [0], looked_up=looked_up)
    assert second.run()["look again"]["held"] == [True, True, False]


def test_an_exact_request_finds_only_exact_blocks(borrowing: Callable[..., Any]):
    engine = borrowing()
    asked(engine, "borrows", "a", "b", "c")
    told = asked(engine, "exact", "a", "b", "c", is_exact=True)
    assert told["tokens"]["device"] == 96  # the donor of the first document is its exact path
    assert told["why_exact"] == "the request asked for an exact answer"
    again = asked(engine, "borrows again", "a", "b", "c")
    assert again["tokens"]["device"] == 96


def test_the_same_prompt_shares_what_an_equal_one_has_borrowed(borrowing: Callable[..., Any]):
    engine = borrowing()
    asked(engine, "one", "a", "b", "c")
    recomputed = engine.recomputed_tokens
    told = asked(engine, "two", "a", "b", "c", question=2)
    assert tiers_of(told) == ["device"] * 3
    assert engine.recomputed_tokens - recomputed < 16, "only what shares a block with the question"


def test_no_tenant_borrows_from_another(borrowing: Callable[..., Any]):
    engine = borrowing()
    asked(engine, "one", "a", "b", tenant="ours")
    assert tiers_of(asked(engine, "two", "b", "a", tenant="theirs")) == [None, None]
    assert tiers_of(asked(engine, "three", "b", "a", tenant="ours")) == ["device", "device"]


def test_nobody_borrows_a_forgotten_document(borrowing: Callable[..., Any]):
    engine = borrowing()
    asked(engine, "one", "a", "b", "c")
    engine.ask("forget", [0], forget=["b"])
    engine.run()
    assert tiers_of(asked(engine, "two", "c", "b", "a", question=2)) == ["device", None, "device"]


@pytest.mark.parametrize("ratio", [None, 0.1], ids=["exact", "borrowing"])
def test_nothing_is_kept_of_a_document_that_was_forgotten_since_the_prompt_was_planned(
    borrowing: Callable[..., Any], ratio: float | None
):
    engine = borrowing(recompute_ratio=ratio, host_blocks=100)
    engine.ask("forget", [0], forget=["b"])
    engine.run()
    engine.ask("planned before", *prompt("a", "b", "c"), withdrawn=["b"])
    assert engine.run()["planned before"]["tokens"]
    assert engine.cache.index.nodes_of("a")
    assert not engine.cache.index.nodes_of("b")
    computed = engine.computed_tokens
    engine.ask("later", *prompt("a", "b"))
    engine.run()
    assert engine.computed_tokens - computed > 64, "b is computed anew"
    assert engine.cache.index.nodes_of("b")
    engine.cache.check_idle()


def test_forgetting_a_document_that_a_waiting_request_borrows_leaves_nothing_of_it(
    borrowing: Callable[..., Any],
):
    engine = borrowing()
    tokens, segments = prompt("a", "b", "c")
    engine.ask("waiting", tokens, segments)
    engine.step()
    engine.ask("forget", [0], forget=["b"])
    engine.run()
    assert not engine.cache.index.nodes_of("b")
    assert tiers_of(asked(engine, "later", "c", "b", question=2)) == ["device", None]


def test_forgetting_reaches_donors_that_are_asked_for_later_and_outlive_their_borrower(
    borrowing: Callable[..., Any],
):
    engine = borrowing(step_tokens=64)
    tokens, segments = prompt("a", "b", "c")
    engine.ask("waiting", tokens, segments)
    engine.ask("forget", [0], forget=["b"])  # before any donor is asked for
    engine.step()
    engine.abort("waiting")
    engine.run()
    assert tiers_of(asked(engine, "later", "c", "b", question=2)) == [None, None]
    engine.cache.check_idle()


def test_warming_prepares_documents_that_are_only_together_long_enough_to_borrow(
    borrowing: Callable[..., Any],
):
    engine = borrowing()
    short = {f"s{number}": document(f"s{number}", 40) for number in range(3)}
    behind = {
        name: Context(f"s{(at + 1) % 3}", short[f"s{(at + 1) % 3}"])
        for at, name in enumerate(short)
    }
    for at, name in enumerate(short):
        before = f"s{(at + 2) % 3}"
        tokens, segments = prompt(before, name, of_tokens=40)
        engine.ask(f"warm {name}", tokens, segments, makes_donors=True, contexts=behind)
        engine.run()
    tokens, segments = prompt("s2", "s0", "s1", question=2, of_tokens=40)
    engine.ask("asked", tokens, segments, contexts=behind)
    assert tiers_of(engine.run()["asked"]) == ["device", "device", "device"]


def test_an_aborted_request_leaves_no_donor_pinned(borrowing: Callable[..., Any]):
    engine = borrowing()
    tokens, segments = prompt("a", "b", "c")
    engine.ask("gone", tokens, segments)
    engine.step()
    engine.abort("gone")
    engine.run()
    assert not [node for node in engine.cache.tree.root.downwards() if node.pins]


def test_donors_of_a_prompt_that_ended_keep_nobody_from_clearing_the_cache(
    borrowing: Callable[..., Any],
):
    engine = borrowing(step_tokens=32, donors_later=True)
    tokens, segments = prompt("a", "b", "c", "d")
    engine.ask("prepared", tokens, segments, makes_donors=True)
    for _ in range(3):
        engine.step()
    engine.abort("prepared")  # as by a request that comes while the engine prepares
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.run()
    engine.cache.check_idle()


def test_a_device_too_small_for_prompt_and_donors_answers_exactly(
    borrowing: Callable[..., Any],
):
    engine = borrowing(device_blocks=24)
    told = asked(engine, "one", "a", "b", "c")
    assert "reuse" not in told
    assert told["why_exact"] == str(WhyExact.NO_ROOM)


def test_an_answer_that_would_leave_no_room_for_the_donors_is_exact(
    borrowing: Callable[..., Any],
):
    engine = borrowing(device_blocks=30)
    assert "reuse" in asked(engine, "short", "a", "b", "c", answer_tokens=20)
    told = asked(engine, "long", "a", "b", "c", answer_tokens=150)
    assert told["why_exact"] == WhyExact.NO_ROOM


def steps_until_all_ended(engine: Any, most: int) -> int:
    """Step until nobody waits or runs; how many steps that took."""
    for steps in range(most):
        if not engine.unfinished:
            return steps
        engine.step()
    pytest.fail(f"{engine.unfinished} requests still wait after {most} steps")


@pytest.mark.parametrize("others", [1, 40])
@pytest.mark.parametrize("window", [1, 32])
def test_a_long_request_in_front_of_borrowers_is_not_kept_from_its_memory(
    borrowing: Callable[..., Any], window: int, others: int
):
    engine = borrowing(device_blocks=41, reorder_window=window)
    asked(engine, "warm", "a", "b", "c")
    engine.ask("long", [7] * 600, [(600, None)])
    for number in range(others):
        engine.ask(f"b{number}", *prompt("a", "b", "c", question=number + 2))
    assert steps_until_all_ended(engine, 600)
    engine.cache.check_idle()


@pytest.mark.parametrize(
    ("borrowers", "sizes"),
    [
        (40, {"device_blocks": 100, "step_tokens": 160, "reorder_window": 1}),
        (100, {"device_blocks": 800, "step_tokens": 640, "reorder_window": 32}),
    ],
)
def test_many_that_wait_do_not_evict_each_others_donors_for_ever(
    borrowing: Callable[..., Any], borrowers: int, sizes: dict[str, int]
):
    engine = borrowing(**sizes)
    dice = random.Random(1)
    for _ in range(2):
        for number in range(sizes["device_blocks"] // 3):
            asked(engine, f"used {number} {dice.random()}", f"j{number}")
    computed = engine.computed_tokens
    for number in range(borrowers):
        new = dice.sample(range(2 * borrowers), 2)
        names = [f"x{dice.randrange(12)}", *(f"y{one}" for one in new)]
        engine.ask(f"b{number}", *prompt(*names, question=number + 2))
    assert steps_until_all_ended(engine, 300)
    assert engine.computed_tokens - computed < 3 * borrowers * len(prompt("a", "b", "c")[0])


@pytest.mark.parametrize("device_blocks", [120, 200])
def test_beside_growing_answers_a_donor_is_computed_once_for_each_request_at_most(
    borrowing: Callable[..., Any], device_blocks: int
):
    dice = random.Random(0)
    sizes = {"device_blocks": device_blocks, "at_once": 64, "step_tokens": 2048}
    engine = borrowing(recompute_ratio=0.0, **sizes)
    donors = 0
    for number in range(40):
        names = [f"d{one}" for one in dice.sample(range(40), 4)]
        tokens, segments = prompt(*names, question=100 + number, of_tokens=96)
        engine.ask(f"q{number}", tokens, segments, answer_tokens=100)
        borrower = engine.scheduler.connector.borrowing.get(engine.scheduler.requests[f"q{number}"])
        computed = [donor.packs or donor for donor in borrower.plan.donors]
        donors += sum(len(donor.token_ids) for donor in computed)
    steps_until_all_ended(engine, 3_000)
    assert engine.cache.counters.donor_tokens <= donors


def test_a_step_asks_vllm_for_few_requests_however_many_wait(
    borrowing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    engine = borrowing(device_blocks=200)
    for number in range(300):
        tokens, segments = prompt(f"a{number}", f"b{number}", question=number)
        engine.ask(f"q{number}", tokens, segments, answer_tokens=50)
    asked = 0
    connector = engine.scheduler.connector
    count_matched = connector.get_num_new_matched_tokens

    def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return count_matched(*arguments)

    monkeypatch.setattr(connector, "get_num_new_matched_tokens", counted)
    for _ in range(5):
        engine.step()
    assert 0 < asked < 200, "one step alone asked for all 300 before"


@pytest.mark.parametrize(
    "sizes",
    [
        {"device_blocks": 100, "step_tokens": 64},
        {"device_blocks": 64, "step_tokens": 48, "host_blocks": 60},
    ],
)
def test_donors_that_take_several_steps_are_fetched_for_no_more_than_fit(
    borrowing: Callable[..., Any], sizes: dict[str, int]
):
    engine = borrowing(reorder_window=32, **sizes)
    exact = 0
    for number in range(20):
        names = [f"{number} {place}" for place in range(3)]
        tokens, segments = prompt(*names, question=number + 2, of_tokens=160)
        engine.ask(f"b{number}", tokens, segments)
        exact += len(tokens)
    assert steps_until_all_ended(engine, 600)
    assert engine.computed_tokens < 1.5 * exact


@pytest.mark.parametrize(
    ("sizes", "borrows"),
    [
        ({"device_blocks": 30, "early": (20, 170), "answer": 150}, False),
        ({"device_blocks": 60, "early": (200, 600), "answer": 400}, True),
    ],
)
def test_a_request_that_loses_its_memory_in_the_middle_of_its_answer_ends(
    borrowing: Callable[..., Any], sizes: dict[str, Any], borrows: bool
):
    engine = borrowing(device_blocks=sizes["device_blocks"])
    tokens, answer = sizes["early"]
    engine.ask("early", [7] * tokens, [(tokens, None)], answer_tokens=answer)
    engine.step()
    engine.ask("late", *prompt("a", "b", "c"), answer_tokens=sizes["answer"])
    late, told = engine.scheduler.requests["late"], {}
    for _ in range(1_500):
        told.update(engine.step())
    assert late.num_preemptions, "it has lost its memory"
    assert not engine.unfinished
    assert ("reuse" in told["late"]) is borrows
    engine.cache.check_idle()


def test_tokens_of_a_neighbour_that_the_model_does_not_have_end_nothing(
    borrowing: Callable[..., Any],
):
    engine = borrowing()
    tokens, segments = prompt("a", "b")
    for number, token in enumerate([2**63, 10_000_000, -5]):
        contexts = {"b": Context("n", [token])}
        engine.ask(f"x{number}", tokens, segments, contexts=contexts, is_trusted=False)
    told = engine.run()
    assert all("reuse" in told[f"x{number}"] for number in range(3)), "from a donor stored alone"
    assert not engine.cache.index.nodes_of("n")


def test_donors_that_may_come_later_are_computed_for_a_prompt_that_makes_them(
    borrowing: Callable[..., Any],
):
    engine = borrowing(donors_later=True)
    first = asked(engine, "first", "a", "b", "c")
    assert first["why_exact"].startswith("its donors are computed later")
    assert engine.computed_tokens == len(prompt("a", "b", "c")[0]), "and nothing besides"
    asked(engine, "maker", "a", "b", "c", makes_donors=True, is_provisional=True)
    told = asked(engine, "second", "a", "c", "b", question=2)
    assert tiers_of(told) == ["device", "device", "device"]


def test_one_missing_donor_is_computed_where_the_others_are_there(borrowing: Callable[..., Any]):
    engine = borrowing(donors_later=True)
    asked(engine, "maker", "a", "b", "c", "d", makes_donors=True)
    told = asked(engine, "next", "a", "d", "c", "e", question=2)
    assert tiers_of(told) == ["device", "device", "device", None]


def test_a_document_whose_donor_costs_more_than_itself_is_computed_in_its_place(
    borrowing: Callable[..., Any],
):
    engine = borrowing(donors_later=True)
    behind = {name: Context(f"near {name}", tuple(document(f"near {name}"))) for name in "bcdef"}
    asked(engine, "maker", "a", "b", "c", makes_donors=True, contexts=behind)
    told = asked(engine, "next", "a", "d", "b", "e", "c", "f", question=2, contexts=behind)
    lent = [each["document"] for each in told["reuse"]["documents"] if each["borrowed"]]
    assert lent == ["b", "c"]
    assert tiers_of(told)[1:] == [None, "device", None, "device", None]
    assert not any(engine.cache.index.nodes_of(f"near {name}") for name in "def")


@pytest.mark.parametrize("withdrawn", [(), ("d",)], ids=["kept", "forgotten"])
def test_an_equal_prompt_finds_what_was_computed_in_place_unless_it_was_forgotten(
    borrowing: Callable[..., Any], withdrawn: Sequence[str]
):
    engine = borrowing(donors_later=True)
    behind = {name: Context(f"near {name}", tuple(document(f"near {name}"))) for name in "bd"}
    asked(engine, "maker", "a", "b", makes_donors=True, contexts=behind)
    tokens, segments = prompt("a", "b", "d")
    engine.ask("planned before", tokens, segments, contexts=behind, withdrawn=withdrawn)
    assert tiers_of(engine.run()["planned before"])[2] is None
    told = asked(engine, "again", "a", "b", "d", contexts=behind)
    assert tiers_of(told)[2] == (None if withdrawn else "device")
    found = told["reuse"]["documents"][2]
    if withdrawn:
        assert (found["borrowed"], found["recomputed"]) == (0, 0), "it was borrowed from nowhere"
    else:
        assert found["recomputed"] < 20
    engine.cache.check_idle()


def test_donors_end_with_the_prompt_that_was_there_for_them_alone(borrowing: Callable[..., Any]):
    engine = borrowing(donors_later=True, step_tokens=32)
    tokens, segments = prompt("a", "b", "c", "d")
    engine.ask("maker", tokens, segments, makes_donors=True, is_provisional=True)
    for _ in range(3):
        engine.step()
    assert engine.unfinished > 1, "the donors have come in"
    engine.abort("maker")
    engine.ask("asked", *prompt("e", question=3))
    engine.step()
    assert engine.unfinished == 1, "nothing is computed but what somebody asked"
    engine.run()
    engine.cache.check_idle()
    again = asked(engine, "again", "a", "b", "c", "d", makes_donors=True)
    assert again["tokens"]["device"] > 0, "what was computed is kept"


def test_a_donor_that_somebody_else_waits_for_is_computed_to_its_end(
    borrowing: Callable[..., Any],
):
    engine = borrowing(donors_later=True, step_tokens=32)
    tokens, segments = prompt("a", "b", "c")
    engine.ask("maker", tokens, segments, makes_donors=True)
    engine.step()
    engine.ask("other", *prompt("a", "b", "c", question=2), makes_donors=True)
    engine.step()
    engine.abort("maker")
    assert [each["borrowed"] for each in engine.run()["other"]["reuse"]["documents"]] == [0, 56, 56]
    engine.cache.check_idle()


@pytest.mark.parametrize("guess", [None, "guess"], ids=["question", "guess"])
def test_donors_of_a_cancelled_request_are_computed_no_further(
    borrowing: Callable[..., Any], guess: str | None
):
    engine = borrowing(step_tokens=128)
    engine.ask("cancelled", *prompt("a", "b", "c", "d", "e"), guess=guess)
    engine.step()
    engine.abort("cancelled")
    computed = engine.computed_tokens
    engine.run()
    assert engine.computed_tokens == computed
    tokens, segments = prompt("a", "b", "c", question=2)
    engine.ask("asked", tokens, segments)
    engine.run()
    assert engine.computed_tokens - computed < len(tokens), "what was computed is kept"
    engine.cache.check_idle()


def test_packed_donors_take_a_part_of_the_slower_tiers_that_others_take(
    engine_with: Callable[..., Any],
):
    taken = {}
    for packs in (False, True):
        engine = engine_with(
            device_blocks=200, host_blocks=400, recompute_ratio=0.1, packs_donors=packs
        )
        names = [f"d{number}" for number in range(10)]
        behind = {name: Context("n", tuple(document("n", 128))) for name in names}
        engine.ask("warm", *prompt("n", *names, of_tokens=128), contexts=behind)
        engine.run()
        index = engine.cache.index
        taken[packs] = sum(node.resident[1] for name in names for node in index.nodes_of(name))
    assert taken[True] < 0.65 * taken[False]


@pytest.mark.parametrize("device_blocks", [64, 68, 72, 100])
def test_a_device_that_cannot_hold_all_packed_donors_while_one_is_made_answers_exactly(
    engine_with: Callable[..., Any], device_blocks: int
):
    engine = engine_with(
        device_blocks=device_blocks, recompute_ratio=0.1, packs_donors=True, step_tokens=2048
    )
    behind = {name: Context("n" + name, tuple(document("n" + name, 800))) for name in "abcd"}
    engine.ask("one", *prompt(*"abcd"), contexts=behind)
    steps_until_all_ended(engine, 60)


def test_a_packed_donor_whose_load_fails_is_asked_for_again_and_never_computed(
    engine_with: Callable[..., Any],
):
    engine = engine_with(device_blocks=128, host_blocks=200, recompute_ratio=0.1, packs_donors=True)
    asked(engine, "one", "a", "b", "c")
    assert engine.scheduler.reset_prefix_cache()
    failed = 0
    engine.ask("two", *prompt("a", "b", "c", question=2))
    while engine.unfinished:
        engine.step()
        loaded = engine.scheduler.finished_recving_kv_req_ids
        packed = [name for name in loaded if not failed and name in engine.scheduler.requests]
        packed = [name for name in packed if engine._is_packed(engine.scheduler.requests[name])]
        engine.scheduler.failed_recving_kv_req_ids |= {*packed}
        failed += len(packed)
    assert failed, "they came from the host"
    engine.cache.check_idle()


def test_what_packed_donors_are_made_from_ends_with_them(engine_with: Callable[..., Any]):
    for steps in range(1, 14):
        engine = engine_with(
            device_blocks=200, recompute_ratio=0.1, packs_donors=True, step_tokens=64
        )
        engine.ask("one", *prompt("a", "b", "c", of_tokens=128))
        for _ in range(steps):
            engine.step()
        engine.abort("one")
        assert engine.scheduler.reset_prefix_cache(), f"after {steps} steps"


def test_a_packed_donor_whose_blocks_are_only_half_there_is_made_anew(
    engine_with: Callable[..., Any],
):
    engine = engine_with(device_blocks=128, recompute_ratio=0.1, packs_donors=True)
    asked(engine, "one", "a", "b", "c")
    [packed] = [node for node in engine.cache.index.nodes_of("b") if node.parent.parent is None]
    assert packed.blocks > 1
    engine.cache.index.release(engine.cache.tree.drop(packed, Tier.DEVICE, 1))
    engine.cache._pool.hide(engine.cache.index.record(packed).keys[1:])
    made = engine.packed_donors
    asked(engine, "two", "a", "b", "c", question=2)
    assert engine.packed_donors == made + 1
    engine.cache.check_idle()


def test_with_any_donors_a_document_is_borrowed_from_the_prompt_it_was_in(
    borrowing: Callable[..., Any],
):
    engine = borrowing(any_donors=True)
    first = asked(engine, "first", "a", "b", "c")
    assert first["why_exact"] == "every document is exact here, or was in no prompt before"
    second = asked(engine, "second", "d", "e", "c", "b")
    assert tiers_of(second) == [None, None, "device", "device"]
    borrowed = [document["borrowed"] for document in second["reuse"]["documents"]]
    assert borrowed[:2] == [0, 0]
    # A tenth is computed anew.
    assert borrowed[2] == borrowed[3] == 64 - 7
    third = asked(engine, "third", "d", "e", "f")
    assert "reuse" not in third, (
        "what stands here as before is exact, and so is what is new behind it"
    )
    assert third["tokens"]["device"] == 160  # the whole blocks of the system text, d and e


def test_with_any_donors_nobody_borrows_from_a_prompt_with_a_forgotten_document(
    borrowing: Callable[..., Any],
):
    engine = borrowing(any_donors=True)
    asked(engine, "first", "a", "b", "c")
    engine.ask("forget", [0], forget=["a"])
    engine.run()
    assert "reuse" not in asked(engine, "second", "d", "c", "b")


def test_a_prompt_of_embeddings_has_no_tokens_to_lend_and_ends_nothing(
    borrowing: Callable[..., Any],
):
    from ragcache_engine.tiers.wire import RequestMessage

    engine = borrowing(any_donors=True)
    embeddings = SimpleNamespace(request_id="e", prompt_token_ids=None, cache_salt=None)
    engine.scheduler.connector.borrowing.note_served(embeddings, RequestMessage(), None)
    asked(engine, "first", "a", "b", "c")
    assert tiers_of(asked(engine, "second", "d", "b"))[1] == "device"


@pytest.mark.parametrize("seed", [5, 6])
def test_any_donors_lend_only_what_is_still_there(
    borrowing: Callable[..., Any], tmp_path: Path, seed: int
):
    dice = random.Random(seed)
    engine = borrowing(
        any_donors=True,
        device_blocks=110,
        host_blocks=60,
        disk_bytes=90 * 5200,
        disk_folder=tmp_path,
        at_once=4,
    )
    told: dict[str, Any] = {}
    for number in range(150):
        names = dice.sample("abcdefghij", dice.randint(1, 4))
        tokens, segments = prompt(*names, question=number)
        engine.ask(
            f"r{number}",
            tokens,
            segments,
            answer_tokens=dice.randint(1, 30),
            tenant=dice.choice([None, "other"]),
            is_exact=dice.random() < 0.2,
        )
        for _ in range(200):
            if engine.unfinished <= dice.randint(0, 8):
                break
            told.update(engine.step())
        if dice.random() < 0.05:
            engine.ask(f"forget{number}", [0], forget=[dice.choice("abcdefghij")])
    told.update(engine.run())
    assert sum("reuse" in one for one in told.values()) > 10
    engine.cache.tree.check()
    engine.cache.check_idle()


@pytest.mark.parametrize("late_copies", [None, 5], ids=["at-once", "as-on-a-gpu"])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_exact_and_borrowing_requests_among_each_other_compute_with_their_own_tensors(
    borrowing: Callable[..., Any], tmp_path: Path, seed: int, late_copies: int | None
):
    dice = random.Random(seed)
    engine = borrowing(
        device_blocks=110,
        host_blocks=60,
        disk_bytes=90 * 5200,
        disk_folder=tmp_path,
        at_once=4,
        recompute_ratio=dice.choice([0.0, 0.15, 1.0]),
        late_copies=late_copies,
    )
    texts = {f"d{n}": document(f"d{n}", dice.randint(3, 120)) for n in range(10)}
    neighbours = {name: dice.choice(sorted(texts)) for name in texts}
    between = [[], [11, 11]][seed % 2]
    behind = {
        name: Context(near, [*texts[near], *between], dice.choice([texts[name][-1], 3, None]))
        for name, near in neighbours.items()
    }
    told: dict[str, Any] = {}
    for number in range(150):
        tokens, segments = list(SYSTEM), [(len(SYSTEM), None)]
        for name in dice.sample(sorted(texts), dice.randint(1, 4)):
            tokens += texts[name]
            segments.append((len(tokens), name))
            if between:
                tokens += between
                segments.append((len(tokens), None))
        tokens += [dice.randrange(50) for _ in range(dice.randint(1, 40))]
        engine.ask(
            f"r{number}",
            tokens,
            segments,
            answer_tokens=dice.randint(1, 30),
            tenant=dice.choice([None, None, "other"]),
            is_exact=dice.random() < 0.4,
            contexts=behind if dice.random() < 0.5 else {},
        )
        for _ in range(200):
            if engine.unfinished <= dice.randint(0, 8):
                break
            told.update(engine.step())
        chance = dice.random()
        if chance < 0.1 and engine.unfinished:
            engine.abort(dice.choice(sorted(engine.scheduler.requests)))
        elif chance < 0.15:
            engine.ask(f"forget{number}", [0], forget=[dice.choice(sorted(texts))])
    told.update(engine.run())
    # How many borrow depends on how soon the disk's thread reads: 25 to 45 of about 90 here.
    assert sum("reuse" in one for one in told.values()) > 10
    engine.cache.tree.check()
    engine.cache.check_idle()


def test_short_documents_are_computed_rather_than_borrowed(borrowing: Callable[..., Any]):
    engine = borrowing()
    tokens = [*SYSTEM, *document("a"), *document("b", 63), 1]
    engine.ask("one", tokens, [(37, None), (101, "a"), (164, "b")])
    assert "so short" in engine.run()["one"]["why_exact"]


def test_a_request_whose_donors_are_there_is_served_before_one_that_is_computed(
    borrowing: Callable[..., Any],
):
    engine = borrowing(at_once=1, device_blocks=256)
    asked(engine, "warm", "a", "b", "c")
    asked(engine, "warm too", "b", "a")  # of a prompt's first document, nothing is packed
    order: list[str] = []
    for name, documents in [("half", "ad"), ("half too", "be"), ("borrows", "cab")]:
        tokens, segments = prompt(*documents, question=2)
        engine.ask(name, tokens, segments, answer_tokens=2, is_exact=name != "borrows")
    while engine.unfinished:
        order += [name for name in engine.step() if "donor" not in name]
    assert order[0] == "borrows"
