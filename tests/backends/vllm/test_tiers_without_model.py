"""The tiers in vLLM's real scheduler, around a model that computes nothing.

The engine of benchmarks/without_model.py writes into each block what its tokens stand for, and compares
before it builds on one: tensors in the wrong place raise WrongTensors.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine.knowledge import POLICIES, Tier
from ragcache_engine.tiers.disk.folder import forget_documents
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.disk.tombstones import leave_tombstones
from ragcache_engine.tiers.wire import LookedUp, RequestMessage

pytestmark = pytest.mark.vllm

SYSTEM = [5] * 37


def steps_of(engine: Any) -> list[int]:
    """Tokens of each step until nobody waits or runs."""
    tokens = []
    while engine.unfinished:
        before = engine.computed_tokens
        engine.step()
        tokens.append(engine.computed_tokens - before)
    return [count for count in tokens if count]


def look_up(engine: Any, *wanted: str, is_trusted: bool = True) -> list[bool] | None:
    """Which of these prompts, a letter a document, are cached whole."""
    described = [prompt(*names) for names in wanted]
    looked_up = [
        LookedUp(tokens[: segments[-1][0]], None, RequestMessage(segments))
        for tokens, segments in described
    ]
    engine.ask("look", [0], looked_up=looked_up, is_trusted=is_trusted)
    held = engine.run()["look"].get("held")
    assert held is None or isinstance(held, list)
    return held


@pytest.mark.parametrize("ratio", [None, 0.1], ids=["exact reuse", "reuse at any position"])
def test_steps_are_short_while_something_provisional_is_computed_and_vllms_own_else(
    engine_with: Callable[..., Any], ratio: float | None
):
    engine = engine_with(device_blocks=512, step_tokens=4096, recompute_ratio=ratio)
    tokens, segments = list(range(1_200)), [(1_100, "d1")]
    engine.ask("asked for", tokens, segments)
    assert steps_of(engine) == [1_200]
    engine.ask("certain guess", [5, *tokens], segments, guess="g0")
    assert steps_of(engine) == [1_201]
    engine.ask("guess", [1, *tokens], segments, guess="g1", is_provisional=True)
    assert steps_of(engine) == [512, 512, 177]
    engine.ask("again", [2, *tokens], segments, adopted=["g1"])
    assert steps_of(engine) == [1_201]
    engine.ask("wrong guess", [3, *tokens], segments, guess="g2", is_provisional=True)
    engine.step()
    engine.abort("wrong guess")
    engine.ask("right one", [4, *tokens], segments)
    assert 1_201 in steps_of(engine)


def test_steps_are_bounded_while_several_requests_are_answered(
    engine_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    engine = engine_with(device_blocks=512, step_tokens=4096)
    monkeypatch.setattr(engine.scheduler, "bounds_steps", True)  # as on an accelerator
    computing = engine.cache.speeds.computing
    monkeypatch.setattr(computing, "bound_step", lambda most: min(most, 500))
    engine.ask("alone", list(range(1_200)), [])
    assert steps_of(engine) == [1_200]
    engine.ask("one", [1, *range(1_200)], [], answer_tokens=2)
    engine.ask("two", [2, *range(600)], [], answer_tokens=2)
    # A step that computes the next token of an answer has room for it besides.
    assert steps_of(engine)[:4] == [500, 500, 500, 302]
    for number in range(2):
        engine.ask(f"prepared {number}", [3 + number, *range(600)], [])
    assert steps_of(engine) == [1_202], "nobody waits for more than the prompts"


def test_a_bound_on_prompts_keeps_no_answer_from_its_next_token(
    engine_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    engine = engine_with(device_blocks=2048, step_tokens=4096, at_once=256)
    for number in range(100):
        engine.ask(f"answer {number}", [number] * 40, [], answer_tokens=200)
    engine.step()
    monkeypatch.setattr(engine.scheduler, "bounds_steps", True)
    monkeypatch.setattr(engine.cache.speeds.computing, "bound_step", lambda most: min(most, 64))
    engine.ask("prompt", [7] * 600, [])
    for _ in range(20):
        engine.step()
    assert "prompt" not in engine.scheduler.requests, "answered beside the others"
    tokens = {r.num_output_tokens for r in engine.scheduler.requests.values()}
    assert max(tokens) - min(tokens) <= 1, "nobody is left out"


def test_its_own_answer_counts_as_nothing_that_a_preempted_request_passes_over(
    engine_with: Callable[..., Any],
):
    engine = engine_with(device_blocks=28, step_tokens=512)
    for number, name in enumerate("abc"):
        engine.ask(name, [number + 1] * 20, [(16, name)], answer_tokens=260)
    was_preempted = False
    while engine.scheduler.has_requests():
        engine.step()
        was_preempted |= any(r.num_preemptions for r in engine.scheduler.requests.values())
        assert engine.cache.counters.recomputed_blocks >= 0
    assert was_preempted


def test_waiting_for_memory_is_no_waiting_for_the_disk(
    engine_with: Callable[..., Any], tmp_path: Path
):
    tokens, segments = prompt("a", "b", "c", "d")
    disk = {"host_blocks": 64, "disk_bytes": 1 << 22, "disk_folder": tmp_path}
    first = engine_with(**disk)
    first.ask("one", tokens, segments)
    first.run()
    first.cache.flush_to_disk()
    first.close()
    engine = engine_with(**disk)
    cache = engine.cache
    for name in ("busy", "busy too"):
        engine.ask(name, [len(name)] * 100, [], answer_tokens=50)
    for _ in range(3):
        engine.step()
    engine.ask("late", tokens, segments)
    cache.plan_admission("late", 0, 0.0)  # tried, and read; then device memory is missing
    deadline = time.monotonic() + 30
    while cache.is_reading_disk and time.monotonic() < deadline:
        cache.collect_disk_results()
    cache.plan_admission("late", 0, 0.5)
    # Others pass it, and the host gives its blocks to them.
    cache._requests.admitting = None
    cache._requests.unpin_waiting()
    for node in reversed(cache.index.nodes()):
        if not node.pins:
            cache.index.release(cache.tree.drop(node, Tier.HOST, 0))
    cache.plan_admission("late", 0, 50.0)
    assert cache.is_reading_disk
    assert not cache._requests["late"].has_given_up
    for name in ("late", "busy", "busy too"):
        engine.abort(name)
    engine.run()


def document(name: str, tokens: int = 64) -> list[int]:
    return [hash((name, at)) % 30_000 for at in range(tokens)]


def prompt(*names: str, question: int = 1) -> tuple[list[int], list[tuple[int, str | None]]]:
    """A prompt's tokens and segments."""
    tokens = list(SYSTEM)
    segments: list[tuple[int, str | None]] = [(len(tokens), None)]
    for name in names:
        tokens += document(name)
        segments.append((len(tokens), name))
    return tokens + [question] * 9, segments


def answered(
    engine: Any, name: str, *names: str, question: int = 1, **asked: Any
) -> dict[str, Any]:
    """Ask alone; where the tokens came from."""
    tokens, segments = prompt(*names, question=question)
    engine.ask(name, tokens, segments, **asked)
    told = engine.run()[name]["tokens"]
    assert isinstance(told, dict)
    return told


def test_a_document_is_computed_once_and_then_found_on_the_device(engine_with: Callable[..., Any]):
    engine = engine_with()
    assert answered(engine, "one", "a", "b") == {"device": 0, "host": 0, "disk": 0}
    again = answered(engine, "two", "a", "b", question=2)
    assert again == {"device": 160, "host": 0, "disk": 0}  # 37 + 64 + 64 tokens, in whole blocks


def test_what_the_device_had_to_give_up_comes_back_from_the_host(engine_with: Callable[..., Any]):
    engine = engine_with(device_blocks=20, host_blocks=64)
    answered(engine, "one", "a", "b")
    answered(engine, "two", "c", "d")
    answered(engine, "three", "e", "f")
    assert answered(engine, "four", "a", "b", question=2)["host"] > 0


def test_what_the_host_had_to_give_up_comes_back_from_the_disk(
    engine_with: Callable[..., Any], tmp_path: Path
):
    engine = engine_with(device_blocks=20, host_blocks=20, disk_bytes=1 << 20, disk_folder=tmp_path)
    for number, names in enumerate(["ab", "cd", "ef", "gh"]):
        answered(engine, f"first {number}", *names)
    assert answered(engine, "again", "a", "b", question=2)["disk"] > 0


def test_what_is_cached_whole_can_be_looked_up_without_loading_it(
    engine_with: Callable[..., Any], tmp_path: Path
):
    disk = {"host_blocks": 40, "disk_bytes": 1 << 20, "disk_folder": tmp_path}
    first = engine_with(**disk)
    assert look_up(first, "ab", "c") == [False, False]
    answered(first, "one", "a", "b")
    assert look_up(first, "ab", "a", "ba", "c") == [True, True, False, False]
    first.close()
    second = engine_with(**disk)
    assert look_up(second, "ab", "c") == [True, False]
    assert answered(second, "two", "a", "b", question=2)["disk"] == 160


def test_only_the_engine_itself_may_look_up(engine_with: Callable[..., Any]):
    engine = engine_with()
    answered(engine, "one", "a", "b")
    assert look_up(engine, "ab", is_trusted=False) is None


def test_a_second_life_starts_with_what_the_first_one_left_on_disk(
    engine_with: Callable[..., Any], tmp_path: Path
):
    disk = {"host_blocks": 40, "disk_bytes": 1 << 20, "disk_folder": tmp_path}
    first = engine_with(**disk)
    answered(first, "one", "a", "b")
    first.close()
    second = engine_with(**disk)
    assert answered(second, "one", "a", "b", question=2)["disk"] == 160


def test_another_tenant_finds_nothing_of_ours(engine_with: Callable[..., Any], tmp_path: Path):
    engine = engine_with(host_blocks=40, disk_bytes=1 << 20, disk_folder=tmp_path)
    answered(engine, "one", "a", "b", tenant="ours")
    assert sum(answered(engine, "two", "a", "b", tenant="theirs").values()) == 0
    assert answered(engine, "three", "a", "b", tenant="ours")["device"] == 160


def test_a_forgotten_document_leaves_every_tier_and_takes_along_what_stood_on_it(
    engine_with: Callable[..., Any], tmp_path: Path
):
    engine = engine_with(host_blocks=40, disk_bytes=1 << 20, disk_folder=tmp_path)
    answered(engine, "one", "a", "b")
    answered(engine, "two", "c")
    engine.ask("forget", [0], forget=["a"])
    engine.run()
    gone = answered(engine, "three", "a", "b", question=2)
    assert sum(gone.values()) <= 32  # the system text, in whole blocks
    assert answered(engine, "four", "c", question=2)["device"] == 96


def test_a_prompt_of_500_documents_can_be_cleared(engine_with: Callable[..., Any], tmp_path: Path):
    tokens, segments = list(range(16)), [(16, None)]
    for number in range(505):
        tokens += [number] * 16
        segments.append((len(tokens), str(number)))
    tiers = {"host_blocks": 700, "disk_bytes": 64 << 20, "disk_folder": tmp_path}
    engine = engine_with(device_blocks=700, step_tokens=8192, **tiers)
    for time_ in range(3):
        engine.ask(str(time_), tokens, segments)
        engine.run()
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert not engine.cache.tree.used(Tier.DEVICE)
    assert not engine.cache.tree.used(Tier.HOST)


@pytest.mark.parametrize("part", ["borrowing.plan", "_contexts.complete"])
def test_a_request_that_cannot_be_planned_is_answered_all_the_same(
    engine_with: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
):
    engine = engine_with(device_blocks=128, recompute_ratio=0.1)
    owner, name = part.split(".")

    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as broken:
        broken.setattr(getattr(engine.scheduler.connector, owner), name, fail)
        engine.ask("one", *prompt("a", "b"))
        assert engine.run()["one"]["tokens"]
    assert "one is answered without its segments" in caplog.text
    engine.ask("two", *prompt("a", "b"))
    assert "two" in engine.run()
    engine.cache.check_idle()


def test_only_the_engine_itself_makes_the_scheduler_forget(engine_with: Callable[..., Any]):
    engine = engine_with()
    answered(engine, "one", "a", "b")
    engine.ask("forget", [0], forget=["a"], is_trusted=False)
    engine.run()
    assert answered(engine, "two", "a", "b", question=2)["device"] == 160


def test_a_document_is_forgotten_under_the_eyes_of_requests_that_compute_with_it(
    engine_with: Callable[..., Any], tmp_path: Path
):
    engine = engine_with(host_blocks=40, disk_bytes=1 << 20, disk_folder=tmp_path)
    tokens, segments = prompt("a", "b")
    engine.ask("running", tokens, segments, answer_tokens=40)
    for _ in range(3):
        engine.step()
    engine.ask("forget", [0], forget=["a"])
    for number in range(5):  # each comes before the one before has ended
        other, named = prompt("c", question=number)
        engine.ask(f"other {number}", other, named, answer_tokens=3)
        engine.step()
    assert not engine.cache.index.nodes_of("a")
    engine.run()
    gone = answered(engine, "later", "a", "b", question=2)
    assert sum(gone.values()) <= 32  # the system text, in whole blocks


def test_files_of_an_earlier_life_are_forgotten_too(
    engine_with: Callable[..., Any], tmp_path: Path
):
    disk = {"host_blocks": 40, "disk_bytes": 1 << 20, "disk_folder": tmp_path}
    first = engine_with(**disk)
    answered(first, "one", "a", "b")
    answered(first, "two", "c")
    first.close()
    second = engine_with(**disk)
    second.ask("forget", [0], forget=["a"])
    second.run()
    second.close()  # after all writes and removals
    third = engine_with(**disk)
    # Whether it is loaded or computed would hang on how fast the disk has just been.
    assert look_up(third, "ab", "c") == [False, True]


def test_a_text_of_an_earlier_life_is_forgotten_by_the_id_that_it_got_later(
    engine_with: Callable[..., Any], tmp_path: Path
):
    disk = {"host_blocks": 40, "disk_bytes": 1 << 20, "disk_folder": tmp_path}
    first = engine_with(**disk)
    tokens, segments = prompt("a", "b")
    first.ask("one", tokens, [(segments[-1][0], None)])  # nobody says what stands there
    first.run()
    answered(first, "two", "c")
    first.close()
    second = engine_with(**disk)
    answered(second, "three", "a", "b", question=2)
    second.cache.flush_to_disk()
    second.close()
    third = engine_with(**disk)
    assert look_up(third, "ab", "c") == [True, True]
    third.close()
    forget_documents(tmp_path, ["a"])  # as `ragcache forget` does, or another engine
    fourth = engine_with(**disk)
    assert look_up(fourth, "ab", "c") == [False, True]


def test_a_second_engine_on_the_folder_forgets_what_the_first_one_forgot(
    engine_with: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from ragcache_engine.tiers.disk import transfers

    monkeypatch.setattr(transfers, "LOOK_S", 0.02)
    disk = {"host_blocks": 40, "disk_bytes": 1 << 20, "disk_folder": tmp_path}
    second = engine_with(**disk)
    answered(second, "one", "a", "b")
    leave_tombstones(tmp_path, [PLAIN.mark("a")])
    forget_documents(tmp_path, ["a"])
    deadline = time.monotonic() + 30
    while second.cache.index.nodes_of("a") and time.monotonic() < deadline:
        time.sleep(0.01)
        second.cache.step()
    gone = answered(second, "later", "a", "b", question=2)
    assert sum(gone.values()) <= 32  # the system text, in whole blocks
    second.cache.flush_to_disk()
    second.close()
    third = engine_with(**disk)
    assert answered(third, "again", "a", "b", question=3)["disk"] > 32, "asked for anew, kept anew"


def test_prompts_nobody_labelled_share_what_they_have_in_common(engine_with: Callable[..., Any]):
    engine = engine_with()
    tokens, _ = prompt("a", "b")
    engine.ask("one", tokens)
    engine.run()
    engine.ask("two", [*tokens[:100], *document("z", 80)])
    assert engine.run()["two"]["tokens"]["device"] == 96
    labelled = answered(engine, "three", "a", "b", question=3)
    assert labelled["device"] == 160


def test_among_waiting_requests_the_one_with_most_cached_goes_first(
    engine_with: Callable[..., Any],
):
    engine = engine_with(at_once=1)
    answered(engine, "warm", "a", "b")
    order: list[str] = []
    for name, documents in [("cold", "cd"), ("colder", "ef"), ("cached", "ab")]:
        tokens, segments = prompt(*documents, question=2)
        engine.ask(name, tokens, segments, answer_tokens=2)
    while engine.unfinished:
        order += engine.step()
    assert order == ["cached", "cold", "colder"]


def test_a_small_request_passes_one_that_waits_for_memory_and_does_not_starve_it(
    engine_with: Callable[..., Any],
):
    engine = engine_with(device_blocks=64, reorder_window=3)
    engine.ask("long answer", list(range(30 * 16)), answer_tokens=40)
    engine.step()
    engine.ask("large", list(range(5_000, 5_000 + 40 * 16)))
    ended: list[str] = []
    number = 0
    while "large" not in ended:
        number += 1  # small ones keep coming
        engine.ask(f"small {number}", [number, *range(100)], answer_tokens=2)
        ended += engine.step()
        assert number < 100
    before = ended[: ended.index("large")]
    assert before[:3] == ["small 1", "small 2", "small 3"]
    assert before[3:] == ["long answer"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("seed", "late_copies"), [(1, None), (2, 2)], ids=["1", "2-as-on-a-gpu"])
def test_under_load_with_aborts_forgetting_and_broken_files_no_tensor_is_out_of_place(
    engine_with: Callable[..., Any],
    tmp_path: Path,
    policy: str,
    seed: int,
    late_copies: int | None,
):
    dice = random.Random(seed)
    engine = engine_with(
        device_blocks=110,
        host_blocks=60,
        disk_bytes=90 * 5200,
        disk_folder=tmp_path,
        policy=policy,
        at_once=4,
        late_copies=late_copies,
    )
    texts = {f"d{n}": document(f"d{n}", dice.randint(3, 120)) for n in range(10)}
    asked = 0
    while asked < 120:
        tokens, segments = list(SYSTEM), [(len(SYSTEM), None)]
        for name in dice.sample(sorted(texts), dice.randint(1, 3)):
            tokens += texts[name]
            segments.append((len(tokens), name))
        tokens += [dice.randrange(50) for _ in range(dice.randint(1, 40))]
        labelled = dice.random() < 0.7
        engine.ask(
            f"r{asked}",
            tokens,
            segments if labelled else (),
            answer_tokens=dice.randint(1, 30),
            tenant=dice.choice([None, None, "other"]),
        )
        asked += 1
        for _ in range(200):
            if engine.unfinished <= dice.randint(0, 8):
                break
            engine.step()
        chance = dice.random()
        if chance < 0.1 and engine.unfinished:
            engine.abort(dice.choice(sorted(engine.scheduler.requests)))
        elif chance < 0.15:
            engine.ask(f"forget{asked}", [0], forget=[dice.choice(sorted(texts))])
        elif chance < 0.25:
            break_a_file(tmp_path, dice)
    ended = engine.run()
    assert all(sum(told["tokens"].values()) >= 0 for told in ended.values() if told.get("tokens"))
    counters = engine.cache.counters
    assert counters.evicted["device"] > 0
    assert counters.evicted["host"] > 0
    assert counters.device_tokens > 0
    engine.cache.tree.check()
    assert not [node for node in engine.cache.tree.root.downwards() if node.pins]


def break_a_file(folder: Path, dice: random.Random) -> None:
    """Flip a byte, cut the end, swap two files or delete one."""
    files = sorted(folder.rglob("*.kv"))
    if len(files) < 2:
        return
    victim, other = dice.sample(files, 2)
    try:
        content = bytearray(victim.read_bytes())
        match dice.randrange(4):
            case 0:
                content[dice.randrange(len(content))] ^= 255
                victim.write_bytes(content)
            case 1:
                victim.write_bytes(content[: dice.randrange(len(content))])
            case 2:
                other.replace(victim)
            case 3:
                victim.unlink()
    except FileNotFoundError:
        pass  # the engine was quicker
