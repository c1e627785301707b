"""Bounds on what a server reads of a request before its doors see it.

The doors see a request once its head is complete. Before that, nobody has shown a key.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LARGEST_HEAD_BYTES = 1 << 16
"""The most bytes of a request's first line and headers, for uvicorn's `h11_max_incomplete_event_size`."""


class BoundedHTTP(H11Protocol):
    """uvicorn's HTTP by h11, which also closes a connection whose request does not become complete.

    uvicorn would choose httptools, which bounds nothing. h11 keeps at most so many bytes of a head, of a
    chunk's size or of trailers as its setting says; it knows no times.
    head_s: how long a head may take, from the connection or from its first byte on. body_s: how long the
    body behind it may take; the doors wait less for the bodies that they read.
    """

    head_s = 30.0
    body_s = 120.0

    _deadline: asyncio.TimerHandle | None = None
    _waits_for: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(h11.IDLE, self.head_s)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Between two requests uvicorn's own keep-alive counts, until the second one begins.
        if self.conn.their_state is h11.IDLE:
            self._wait(h11.IDLE, self.head_s)

    def handle_events(self) -> None:
        super().handle_events()
        state = self.conn.their_state
        if self.transport.get_protocol() is not self:  # a WebSocket, which another protocol reads
            self._stop_waiting()
        elif state is h11.SEND_BODY:
            self._wait(state, self.body_s)
        elif state is not h11.IDLE:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self, part: object, seconds: float) -> None:
        """Close the connection unless this part of a request is complete in time."""
        if part is not self._waits_for:
            self._stop_waiting()
            self._waits_for = part
            self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._waits_for = None
