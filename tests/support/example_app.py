"""The web app of examples/ in this process, on any server, with an embedding that has no weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from word_bags import WordBags

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = "What does the with statement do with a context manager?"


@contextmanager
def example_app(server: str, key: str) -> Iterator[AppClient]:
    """Run the app against a server, as `app_on_server.py URL` does. key: its API key there."""
    from starlette.testclient import TestClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGCACHE_API_KEY", key)
        patch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        import app_on_server  # type: ignore[import-not-found, unused-ignore]
        import sample  # type: ignore[import-not-found, unused-ignore]

        patch.setattr(sample, "vectors", lambda texts: WordBags().embed(texts).tolist())
        with TestClient(app_on_server.make_app(server)) as client:
            yield AppClient(client)


class AppClient:
    """Asks the app."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def ask(self, question: str) -> list[str]:
        """Return the pieces of an answer as they come."""
        with self._client.stream("GET", "/stream", params={"question": question}) as answer:
            assert answer.status_code == 200
            return list(answer.iter_text())

    def status(self, question: str) -> int:
        """Ask, and return the HTTP status."""
        status: int = self._client.get("/stream", params={"question": question}).status_code
        return status

    def stats(self) -> dict[str, int]:
        told: dict[str, int] = self._client.get("/stats").json()
        return told

    def asking_again_finds_the_documents(self, replicas: int = 1) -> bool:
        """Ask once more than there are replicas; return whether one answer came from the cache.

        A fleet spares a replica that has had much to do lately, even for one that finds nothing.
        """
        first, found = self.ask(QUESTION), False
        assert len(first) > 3
        for _ in range(replicas):
            before = self.stats()
            assert "".join(self.ask(QUESTION)) == "".join(first)
            after = self.stats()
            prompt_tokens = after["prompt_tokens"] - before["prompt_tokens"]
            cached_tokens = after["cached_tokens"] - before["cached_tokens"]
            found = found or cached_tokens > 0.8 * prompt_tokens
        return found
