"""Work is done while nobody asks, ends at once when somebody does, and goes on afterwards."""

from __future__ import annotations

import asyncio

from ragcache_engine.anywhere.idle_work import IdleWork


class Pieces:
    """Pieces of work; one is done as soon as it may, unless it is `held`."""

    def __init__(self, count: int, *, held: bool = False) -> None:
        self.left = count
        self.held = held
        self.cancelled = 0
        self.idle = IdleWork(self.do_next, lambda: self.left > 0, idle_s=0.0)
        self.idle.open()

    async def do_next(self) -> None:
        try:
            await asyncio.sleep(3600 if self.held else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.left -= 1


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_all_pieces_are_done_once_the_last_request_has_ended():
    async def run() -> None:
        pieces = Pieces(3)
        with pieces.idle.request():
            with pieces.idle.request():
                await settle()
            await settle()
            assert pieces.left == 3
        await settle()
        assert pieces.left == 0

    asyncio.run(run())


def test_a_request_cancels_the_piece_that_is_being_done():
    async def run() -> None:
        pieces = Pieces(2, held=True)
        pieces.idle.begin()
        await settle()
        with pieces.idle.request():
            await settle()
            assert (pieces.cancelled, pieces.left) == (1, 2)
            pieces.held = False
        await settle()
        assert pieces.left == 0

    asyncio.run(run())


def test_nothing_is_done_during_a_pause():
    async def run() -> None:
        pieces = Pieces(1, held=True)
        pieces.idle.begin()
        await settle()
        pieces.held = False
        async with pieces.idle.paused():
            assert pieces.cancelled == 1
            pieces.idle.begin()
            with pieces.idle.request():
                pass
            await settle()
            assert pieces.left == 1
        await settle()
        assert pieces.left == 0

    asyncio.run(run())


def test_a_pause_waits_for_a_piece_that_a_request_has_cancelled_before():
    async def run() -> None:
        ended: list[str] = []

        async def slow() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                for _ in range(5):
                    await asyncio.sleep(0)
                ended.append("piece")
                raise

        idle = IdleWork(slow, lambda: not ended, idle_s=0.0)
        idle.open()
        idle.begin()
        await settle()
        with idle.request():
            async with idle.paused():
                ended.append("paused")
        assert ended == ["piece", "paused"]
        await idle.close()

    asyncio.run(run())


def test_nothing_begins_while_a_pause_waits_for_the_last_piece():
    async def run() -> None:
        begun: list[int] = []

        async def slow() -> None:
            begun.append(len(begun))
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                idle.begin()
                await asyncio.sleep(0)
                raise

        idle = IdleWork(slow, lambda: True, idle_s=0.0)
        idle.open()
        idle.begin()
        await settle()
        async with idle.paused():
            await settle()
            assert begun == [0]
        await idle.close()

    asyncio.run(run())


def test_nothing_is_done_before_it_is_open_or_after_it_is_closed():
    async def run() -> None:
        pieces = Pieces(1)
        closed = IdleWork(pieces.do_next, lambda: True, idle_s=0.0)
        closed.begin()
        await pieces.idle.close()
        pieces.idle.begin()
        await settle()
        assert pieces.left == 1

    asyncio.run(run())
