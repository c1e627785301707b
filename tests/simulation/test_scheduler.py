"""Requests on the simulated device: one after the other, many at once, and in any order at all.

Every block, slot and file has content: the key of what lies in it. So a block handed out before its
time, a slot overwritten while it is read, or a file under another's name all show as wrong content.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from thoroughness import examples

from ragcache_engine.knowledge import Node, Tier, policy_of_tiers
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.simulation.block_keys import KeyChain
from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.device import SimulatedDevice
from ragcache_engine.simulation.request import SimulatedRequest, State, describe_with_keys
from ragcache_engine.simulation.scheduler import Scheduler
from ragcache_engine.simulation.sizes import TierSizes

BLOCK_TOKENS = 4
DISK = RANK[Tier.DISK]
TEXTS = {
    # Tokens of each document: some end with a block, some within one, and one may own none.
    "S": [1] * 5,
    "A": [2] * 8,
    "B": [3] * 7,
    "C": [4] * 2,
    "D": [5] * 13,
}


def a_token_each(cached: int, computed: int) -> float:
    """Prefilling a token takes a second."""
    return float(computed)


class World:
    """A scheduler over a simulated device; answers are made of one token again and again."""

    def __init__(
        self,
        policy: str = "lru",
        *,
        device: int = 100,
        host: int = 0,
        disk: int = 0,
        window: int = 32,
        depth: int | None = None,
        step_tokens: float = math.inf,
        bytes_per_s: float = 1e9,
    ) -> None:
        self.depth = depth
        self.clock = VirtualClock()
        self.device = SimulatedDevice(
            TierSizes(BLOCK_TOKENS, device, host, disk, token_bytes=25),
            policy_of_tiers(policy),
            self.clock,
            protect=window,
            host_bytes_per_s=bytes_per_s,
            disk_bytes_per_s=bytes_per_s,
        )
        self.scheduler = Scheduler(
            self.device,
            prefill_s=a_token_each,
            decode_s=0.5,
            step_tokens=step_tokens,
            reorder_window=window,
        )
        self.open: list[SimulatedRequest] = []
        self.chains: dict[SimulatedRequest, Any] = {}
        self.count = 0

    def arrive(
        self, *documents: str, question: Sequence[int] = (9,), guess: str | None = None
    ) -> SimulatedRequest:
        tokens: list[int] = []
        segments: list[tuple[int, str | None]] = []
        for document in documents:
            tokens += TEXTS[document]
            segments.append((len(tokens), None if document == "S" else document))
        tokens += question
        prompt, chain = describe_with_keys(
            tokens,
            segments,
            prompt_tokens=len(tokens),
            tenant=None,
            block_tokens=BLOCK_TOKENS,
            depth=self.depth,
            has_disk=self.device.disk is not None,
        )
        self.count += 1
        request = SimulatedRequest(
            f"request {self.count}", prompt, chain.keys, len(tokens), guess=guess
        )
        self.scheduler.add(request)
        self.open.append(request)
        self.chains[request] = chain
        return request

    def step(self) -> list[SimulatedRequest]:
        """One step, and a token of the answer for those that have computed theirs."""
        done = self.scheduler.step()
        for request in done:
            if request.tokens < self.device.sizes.device_tokens:
                self.chains[request].extend([7])
                request.tokens += 1
        return done

    def end(self, request: SimulatedRequest, *, completed: bool = True) -> dict[str, int] | None:
        self.open.remove(request)
        return self.scheduler.end(request, completed=completed)

    def run(self, *documents: str, **told: Any) -> dict[str, int]:
        """One request from its arrival to its end, with all copies; where its tokens came from."""
        request = self.arrive(*documents, **told)
        for _ in range(200):
            if request in self.step():
                break
        else:
            raise AssertionError("the request gets nowhere")
        tokens = self.end(request)
        assert tokens is not None
        self.device.finish_copies()
        return {tier: count for tier, count in tokens.items() if count}

    def fill_device(self) -> None:
        """Overwrite all that lies on the device, by a prompt that nobody asks for again."""
        self.run(question=[10 + self.count] * (self.device.sizes.device_tokens - 1))

    def blocks_on_device(self, document: str) -> int:
        chain = KeyChain(BLOCK_TOKENS)
        chain.extend(TEXTS[document])
        return len(self.device.pool.longest_prefix(chain.keys))

    def nodes(self) -> list[Node]:
        """What the cache manager knows, document by document."""
        root = self.device.manager.tree.root
        return [node for node in root.downwards() if node is not root]

    def is_cached(self, key: bytes) -> bool:
        """Whether some tier has the block, as the cache manager believes."""
        found = self.device.manager.index.owner(key)
        if found is None:
            return False
        node, at = found  # an adopted guess leaves a node behind that holds nothing
        return at < max(node.resident)

    def check(self) -> None:
        """What must hold at all times."""
        self.device.check(self.open)
        tree = self.device.manager.tree
        # A node that nobody finished may wait for the next change around it to be forgotten.
        rest = [
            node for node in self.nodes() if not (node.uses or node.children or any(node.resident))
        ]
        tree.pin(rest)
        self.device.manager.check()
        for node in rest:
            node.pins -= 1


# -- one after the other ---------------------------------------------------------------------------


def test_a_prompt_asked_for_again_is_found_on_the_device():
    world = World()
    assert world.run("S", "A", "D") == {}
    assert world.run("S", "A", "D") == {"device": 24}
    assert world.device.counters.device_tokens == 24


def test_what_the_device_has_evicted_comes_back_from_the_host():
    world = World(device=8, host=20)
    world.run("S", "A")
    world.fill_device()
    assert world.run("S", "A") == {"host": 12}
    assert world.device.counters.loaded_bytes == 3 * 100
    world.check()


def test_what_the_host_has_evicted_too_comes_back_from_the_disk():
    world = World(device=8, host=8, disk=50)
    world.run("S", "A")
    world.fill_device()
    world.device.clear()
    assert world.run("S", "A") == {"disk": 12}
    world.check()


def test_loading_takes_the_time_of_its_bytes_and_computing_that_of_the_rest():
    world = World(device=8, host=20, bytes_per_s=400.0)
    world.run("S", "A")
    world.fill_device()
    world.device.end_step([], prompt_tokens=1000, seconds=1000.0)  # how slow computing is
    began_s = world.clock.now()
    request = world.arrive("S", "A")
    while request not in world.step():
        pass
    assert world.clock.now() - began_s == pytest.approx(3 * 100 / 400.0 + 2)


def test_copies_slower_than_computing_are_not_made():
    world = World(device=8, host=20, bytes_per_s=1.0)
    world.run("S", "A")
    world.fill_device()
    for _ in range(3):  # until the manager has measured how slow they are
        world.run("S", "A")
        world.fill_device()
    assert world.run("S", "A") == {}
    assert world.device.counters.recomputed_blocks > 0


@pytest.mark.parametrize(("policy", "left"), [("lru", {"A": 0, "D": 1}), ("lfu", {"A": 1, "D": 0})])
def test_the_policy_decides_who_leaves(policy: str, left: dict[str, int]):
    world = World(policy, device=8)
    for document in ("A", "A", "A", "D"):  # two blocks and three
        world.run(document)
    world.run("B", question=[9] * 21)  # seven blocks, and three are empty
    assert {name: world.blocks_on_device(name) for name in "AD"} == left


def test_only_the_first_documents_of_a_prompt_are_kept_if_so_told():
    world = World(device=8, host=20, depth=1)
    world.run("A", "D")
    world.fill_device()
    assert world.run("A", "D") == {"host": 8}


def test_a_forgotten_document_leaves_every_tier():
    world = World(device=30, host=30, disk=30)
    world.run("A", "D")
    world.run("B")
    world.device.forget(["A"])
    assert world.run("A", "D") == {}
    assert world.blocks_on_device("B") == 1
    world.check()


def test_a_cleared_device_and_host_leave_what_is_on_disk():
    world = World(device=30, host=30, disk=30)
    world.run("A", "D")
    assert world.device.clear()
    assert world.device.pool.cached_count == 0
    assert world.run("A", "D") == {"disk": 20}


def test_nothing_is_cleared_while_a_request_holds_blocks():
    world = World()
    request = world.arrive("A")
    world.step()
    assert not world.device.clear()
    world.end(request)
    assert world.device.clear()


# -- many at once ----------------------------------------------------------------------------------


def test_steps_take_the_time_of_their_prompts_and_of_one_decode():
    world = World()
    first = world.arrive("A")
    assert world.step() == [first]
    assert world.clock.now() == 9
    second = world.arrive("B")
    assert set(world.step()) == {first, second}
    assert world.clock.now() == 9 + 8 + 0.5


def test_a_step_computes_so_many_prompt_tokens_at_most():
    world = World(step_tokens=6)
    first, second = world.arrive("A"), world.arrive("B")
    assert world.step() == []
    assert world.step() == [first]
    assert (first.computed_tokens, second.computed_tokens) == (9, 3)
    assert world.scheduler.prefilled_tokens == 12


@pytest.mark.parametrize("window", [1, 8])
def test_within_the_window_the_request_with_most_cached_goes_first(window: int):
    world = World(window=window, step_tokens=100)
    long = [6] * 180
    world.run("S", "D", question=long[:100])
    unknown, known = world.arrive("A", question=long), world.arrive("S", "D", question=long)
    world.step()
    assert (known.computed_tokens > unknown.computed_tokens) == (window > 1)


def test_when_blocks_run_out_the_latest_request_waits_again():
    world = World(device=8)
    first, second = world.arrive("A"), world.arrive("B")
    world.step()
    while second.state is State.RUNNING:
        world.step()
        world.check()
    assert (first.state, second.state) == (State.RUNNING, State.WAITING)
    tokens = second.tokens
    world.end(first)
    while second not in world.step():
        pass
    assert second.tokens == tokens + 1
    world.check()


def test_a_request_aborted_while_it_is_loaded_gives_its_blocks_back_when_the_copy_ends():
    world = World(device=8, host=20)
    world.run("S", "A")
    world.fill_device()
    request = world.arrive("S", "A")
    world.step()
    world.end(request, completed=False)
    world.device.finish_copies()
    assert world.device.pool.free_count == 8
    world.check()


def test_a_cache_can_be_cleared_while_an_aborted_request_is_still_loaded():
    world = World(device=8, host=20)
    world.run("S", "A")
    world.fill_device()
    request = world.arrive("S", "A")
    world.scheduler.step()
    assert request.state is State.LOADING
    world.end(request, completed=False)
    assert world.device.clear()
    assert world.run("S", "A") == {}
    world.check()


def test_a_guess_counts_as_a_use_when_it_is_adopted():
    world = World()
    world.run("A", guess="guess")
    (node,) = world.nodes()
    assert node.uses == 0
    world.device.adopt("guess")
    assert node.uses == 1


def test_a_prompt_larger_than_the_device_is_refused():
    world = World(device=2)
    with pytest.raises(ValueError, match="do not fit into the 8"):
        world.arrive("D")


def test_sizes_that_cannot_work_are_refused():
    for sizes in ((4, 0), (0, 4), (4, 4, -1), (4, 4, 0, 1)):
        with pytest.raises(ValueError, match=r"got|host"):
            TierSizes(*sizes)


# -- any calls in any order ------------------------------------------------------------------------

prompts = st.sampled_from(["SA", "SAB", "SAD", "SDC", "SDCA", "SCB", "AB", "BD", "D", "C"]).map(
    tuple
)
questions = st.sampled_from([(8,), (9,), (9, 9, 9), (8, 9, 9, 9, 9, 9)])
whichever = st.integers(0, 99)
seldom = st.sampled_from([False, False, False, True])


class AnythingUsersDo(RuleBasedStateMachine):
    policy = "lru"

    @initialize(
        device=st.integers(12, 16),
        host=st.sampled_from([8, 5, 12, 2, 0]),
        disk=st.sampled_from([0, 3, 9]),
        window=st.sampled_from([1, 4]),
        step_tokens=st.sampled_from([4, 10, math.inf]),
        bytes_per_s=st.sampled_from([1e9, 1e4, 200.0]),
    )
    def begin(
        self,
        device: int,
        host: int,
        disk: int,
        window: int,
        step_tokens: float,
        bytes_per_s: float,
    ) -> None:
        self.world = World(
            self.policy,
            device=device,
            host=host,
            disk=disk if host else 0,
            window=window,
            step_tokens=step_tokens,
            bytes_per_s=bytes_per_s,
        )
        self.events = 0
        self.asked_at: dict[bytes, int] = {}
        self.forgotten_at: dict[str, int] = {}
        self.keys_of_document: dict[str, set[bytes]] = {}

    def one_of(self, things: Sequence[Any], which: int) -> Any:
        return things[which % len(things)]

    @precondition(lambda self: len(self.world.open) < 5)
    @rule(documents=prompts, question=questions, is_guess=seldom)
    def arrive(self, documents: tuple[str, ...], question: tuple[int, ...], is_guess: bool) -> None:
        guess = f"guess {self.world.count}" if is_guess else None
        request = self.world.arrive(*documents, question=question, guess=guess)
        self.events += 1
        self.asked_at.update(dict.fromkeys(request.prompt.keys, self.events))
        end = 0
        for document in documents:
            if document != "S":
                keys = request.prompt.keys[end // BLOCK_TOKENS :]
                self.keys_of_document.setdefault(document, set()).update(keys)
            end += len(TEXTS[document])

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.world.step()

    @rule(seconds=st.sampled_from([1e-6, 0.5, 20.0]))
    def time_passes_outside(self, seconds: float) -> None:
        self.world.clock.pass_outside(seconds)

    @precondition(lambda self: any(request.is_decoding for request in self.world.open))
    @rule(which=whichever)
    def complete(self, which: int) -> None:
        decoding = [request for request in self.world.open if request.is_decoding]
        self.world.end(self.one_of(decoding, which))

    @precondition(lambda self: self.world.open)
    @rule(which=whichever, applies=seldom)
    def abort(self, which: int, applies: bool) -> None:
        if applies:
            self.world.end(self.one_of(self.world.open, which), completed=False)

    @rule(number=whichever)
    def a_guess_is_adopted(self, number: int) -> None:
        self.world.device.adopt(f"guess {number % (self.world.count + 1)}")

    @rule(document=st.sampled_from("ABCD"), applies=seldom)
    def forget(self, document: str, applies: bool) -> None:
        if not applies:
            return
        self.events += 1
        self.forgotten_at[document] = self.events
        self.world.device.forget([document])

    @precondition(lambda self: not self.world.open)
    @rule()
    def clear(self) -> None:
        assert self.world.device.clear()
        assert self.world.device.pool.cached_count == 0

    @invariant()
    def nothing_is_lost_or_mixed_up(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world") or sys.exc_info()[0]:
            return  # what has failed already need not end well
        world = self.world
        for _ in range(1000):
            for request in world.step():
                world.end(request)
            if not world.open:
                break
        assert not world.open, "requests get nowhere"
        world.device.finish_copies()
        world.check()
        assert world.device.pool.free_count == len(world.device.pool.blocks)
        assert not any(node.pins for node in world.nodes())
        for document, forgotten_at in self.forgotten_at.items():
            for key in self.keys_of_document.get(document, set()):
                if self.asked_at[key] < forgotten_at:
                    assert not world.device.pool.find(key), f"{document} is still on the device"
                    assert not world.is_cached(key), f"{document} is still in some tier"
        if world.device.disk is not None:
            assert len(world.device.disk.files) >= sum(
                node.resident[DISK] for node in world.nodes()
            )


@pytest.mark.parametrize("policy", ["lru", "pgdsf", "halflife"])
@pytest.mark.slow
def test_whatever_users_do_nothing_is_lost_or_mixed_up(policy: str):
    machine = type("Machine", (AnythingUsersDo,), {"policy": policy})
    machine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40)
    machine.TestCase().runTest()
