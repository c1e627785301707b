"""Serves the page from a thread of its own, on this machine alone unless told otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from html import escape
from ipaddress import ip_address
from typing import Any, Self
from urllib.parse import urlsplit

from flask import abort, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from ragcache_engine.dashboard.observation import Observer
from ragcache_engine.dashboard.page import make_page
from ragcache_engine.dashboard.watcher import Watcher

EVERY_S = 2.0


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Write nothing: a page asks every two seconds."""


def _refuse_strange_names(given: str) -> None:
    """Refuse a request under a name that is not this machine's. given: the page's own."""
    try:
        name = urlsplit(f"//{request.host}").hostname or ""
        is_local = name in ("localhost", given.lower()) or _is_loopback(name)
    except ValueError:  # neither a name nor an address
        is_local = False
    if not is_local:
        abort(400)


def _is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address. Raises ValueError for what is none."""
    known = ip_address(address)
    return bool((getattr(known, "ipv4_mapped", None) or known).is_loopback)


class Dashboard:
    """A live page. It ends with `close`, with the engine, or with the process; use it in a `with` block.

    url: where the page is. In a notebook the object shows the page itself.
    after_close: called once the page has ended.
    """

    def __init__(
        self, observer: Observer, host: str, port: int, *, every_s: float = EVERY_S
    ) -> None:
        self._watcher = Watcher(observer, every_s)
        page = make_page(self._watcher, every_s)
        self._server: BaseWSGIServer = make_server(
            host, port, page.server, threaded=True, request_handler=_Quiet
        )
        shown = f"[{host}]" if ":" in host else host
        if _is_loopback(self._server.socket.getsockname()[0]):
            # A page of another site must not reach this one under a name of its own. Flask's own list
            # of trusted hosts knows no addresses of IPv6.
            page.server.before_request(partial(_refuse_strange_names, host))
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="ragcache-dashboard-server", daemon=True
        )
        self._lock = threading.Lock()
        self._is_closed = False
        self.after_close: Callable[[], None] = lambda: None
        self.url = f"http://{shown}:{self._server.server_port}/"
        self._watcher.start()
        self._thread.start()

    def wait(self) -> None:
        """Wait until the page is closed, for programs that do nothing else."""
        self._thread.join()

    def close(self) -> None:
        """End the page and its threads. A second call does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._watcher.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.after_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Dashboard({self.url})"

    def _repr_html_(self) -> str:
        url = escape(self.url)
        frame = f'<iframe src="{url}" width="100%" height="1150" style="border:0"></iframe>'
        return f'<p><a href="{url}" target="_blank">{url}</a></p>{frame}'
