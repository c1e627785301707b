"""Plans how much of a request's prompt to load from slower tiers: the part that loads faster.

So caching never makes a request slower than computing its whole prompt. Source: RAGCache, §5.1.
"""

from __future__ import annotations

from ragcache_engine.knowledge import Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.requests import TrackedRequest
from ragcache_engine.tiers.speed import CopyingSpeed, Rate, Speeds

DEVICE, HOST, DISK = (RANK[tier] for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK))


class LoadPlanner:
    """Compares loading with computing, at the speeds measured so far.

    block_tokens: tokens in a block. block_bytes: bytes of a block in a slower tier.
    """

    def __init__(self, block_tokens: int, block_bytes: int, speeds: Speeds) -> None:
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._speeds = speeds

    def plan(
        self,
        request: TrackedRequest,
        *,
        others: int,
        disk_queue: int | None,
        shared_queue: int | None = None,
    ) -> None:
        """Set how many blocks the request is to load, and how many it passes over.

        others: how many other requests run or wait; 0 if the model computes none of them. A request that
          computes its blocks in their step ends with that step; one that loads them takes another step,
          a short one. But each of the others waits longer for what it computes. A donor that is loaded
          whole ends there. A packed donor loads whatever can be loaded.
        disk_queue: how many reads wait before those that this request would ask for; None if nothing is
          to be read now. shared_queue: the same of the shared store.
        """
        prompt, block_tokens = request.prompt, self._block_tokens
        cached = request.device_blocks * block_tokens
        # After a preemption, the request's own answer may be cached too.
        left = max(0, prompt.tokens - cached)
        # vLLM always computes the last token again, because it needs the token's output.
        most = left // block_tokens
        in_host = min(most, loadable_blocks(request, with_disk=False))
        blocks = self._worth_loading(
            self._choose_rate(request, self._speeds.from_host, others), cached, left, in_host
        )
        anywhere = in_host
        if disk_queue is not None:
            anywhere = min(most, loadable_blocks(request, with_disk=True))
        if blocks == in_host and anywhere > in_host:
            loaded = blocks * block_tokens
            blocks += self._worth_loading(
                self._choose_queued(request, self._speeds.from_disk, others, disk_queue),
                cached + loaded,
                left - loaded,
                anywhere - in_host,
            )
        in_store = 0
        if shared_queue is not None:
            in_store = min(most, request.shared_blocks - request.device_blocks)
        if blocks == anywhere and in_store > anywhere:
            loaded = blocks * block_tokens
            blocks += self._worth_loading(
                self._choose_queued(request, self._speeds.from_shared, others, shared_queue),
                cached + loaded,
                left - loaded,
                in_store - anywhere,
            )
        anywhere = max(anywhere, in_store)
        if request.is_packed:
            blocks = anywhere
        elif request.is_trial:
            blocks = min(blocks, self._most_to_try(request, cached, left))
        request.load_blocks, request.passed_over_blocks = blocks, anywhere - blocks

    def is_worth_asking(self, request: TrackedRequest, blocks: int, *, others: int) -> bool:
        """Return whether a request would load so many leading blocks if the shared store had them.

        Of those that would not, one now and then asks all the same, and tries to load.
        """
        first, block_tokens = request.device_blocks, self._block_tokens
        first += loadable_blocks(request, with_disk=True)
        left = request.prompt.tokens - first * block_tokens
        if blocks <= first or left <= 0:
            return False
        if request.is_packed:
            return True
        rate = self._choose_rate(request, self._speeds.from_shared, others)
        if self._worth_loading(rate, first * block_tokens, left, blocks - first):
            return True
        request.is_trial = self._speeds.from_shared.pass_over()
        return request.is_trial

    def note_passed_over(self, request: TrackedRequest) -> None:
        """Note once, for a request's first plan, what it passes over; some of these try to load."""
        if request.passed_over_blocks:
            speeds = self._speeds
            slow = speeds.from_shared
            for copying, with_disk in ((speeds.from_disk, True), (speeds.from_host, False)):
                if request.load_blocks < loadable_blocks(request, with_disk=with_disk):
                    slow = copying
            request.is_trial = request.is_trial or slow.pass_over()

    def _most_to_try(self, request: TrackedRequest, cached: int, left: int) -> int:
        """Return how many blocks a trial loads, so that it takes no longer than computing everything.

        That holds if copies are as slow as they look.
        """
        speeds = self._speeds
        tried = [speeds.from_host, speeds.from_disk]
        if request.shared_blocks:
            tried.append(speeds.from_shared)
        slowest = min(copying.bandwidth_bytes_per_s for copying in tried)
        seconds = speeds.computing.prefill_s(cached, left)
        return max(1, int(seconds * slowest / self._block_bytes))

    def _choose_rate(self, request: TrackedRequest, copying: CopyingSpeed, others: int) -> Rate:
        computing = self._speeds.computing
        if request.is_trial or (copying is self._speeds.from_shared and not computing.is_known):
            # A host that has only fetched so far does not know what computing would take.
            return copying.best_rate
        if not others:
            return copying.rate
        step_s = 0.0 if request.is_donor else computing.short_step_s
        return copying.rate._replace(latency_s=step_s / (1 + others))

    def _choose_queued(
        self, request: TrackedRequest, copying: CopyingSpeed, others: int, queue: int | None
    ) -> Rate:
        """Return the rate behind so many other reads."""
        rate = self._choose_rate(request, copying, others)
        queue_s = (queue or 0) * self._block_bytes / rate.bandwidth_bytes_per_s
        return rate._replace(latency_s=rate.latency_s + queue_s)

    def _worth_loading(self, rate: Rate, cached: int, computed: int, blocks: int) -> int:
        return self._speeds.computing.blocks_worth_loading(
            rate,
            cached_tokens=cached,
            computed_tokens=computed,
            loadable_blocks=blocks,
            block_tokens=self._block_tokens,
            block_bytes=self._block_bytes,
        )


def loadable_blocks(request: TrackedRequest, *, with_disk: bool) -> int:
    """Count the blocks that slower tiers have right after those on the device, without a gap."""
    skip, blocks = request.device_blocks, 0
    for node in request.nodes:
        if skip >= node.blocks:
            skip -= node.blocks
            continue
        here = max(node.resident[HOST], node.resident[DISK] if with_disk else 0)
        blocks += max(0, here - skip)
        skip = 0
        if here < node.blocks:
            break
    return blocks


def blocks_on_device(request: TrackedRequest) -> int:
    """Count the leading blocks of the prompt that the tree knows to be on the device."""
    blocks = 0
    for node in request.nodes:
        blocks += node.resident[DEVICE]
        if node.resident[DEVICE] < node.blocks:
            break
    return blocks
