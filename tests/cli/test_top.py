"""`ragcache top`: the figures of a server on the terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from ragcache_cli.main import main
from ragcache_cli.top import render, watch
from ragcache_engine.dashboard import History, Observation, ObservedRequest
from ragcache_engine.observing.request_log import DocumentSource
from ragcache_engine.tiers.counters import BlocksByTier, DiskState, TierCounters
from ragcache_engine.tiers.tree_snapshot import DocumentBlocks, TreeSnapshot
from ragcache_engine.values import CachedTokens


def seen(at: float, device: int, computed: int, mended: int = 0, **more: object) -> Observation:
    counters = TierCounters(
        recomputed_tokens=mended,
        ended=int(at),
        device_tokens=device,
        computed_tokens=computed,
        evicted=BlocksByTier(device=int(at)),
        held=BlocksByTier(device=50),
        capacity=BlocksByTier(device=100),
        disk=DiskState.STALLED,
    )
    return Observation(at, counters, **more)  # type: ignore[arg-type]


def text_of(shown: object) -> str:
    console = Console(file=StringIO(), width=120)
    console.print(shown)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(name))


def test_it_shows_shares_of_all_tokens_and_of_the_last_minute():
    history = History()
    history.add(seen(10, 100, 900))
    history.add(seen(12, 190, 910))
    text = text_of(render("here", seen(12, 190, 910), history.intervals()))
    assert row(text, "device")[-3:] == ["17.3%", "90.0%", "190"]
    assert row(text, "computed")[-3:] == ["82.7%", "10.0%", "910"]
    assert row(text, "borrowed (approximate)")[-3:] == ["0.0%", "0.0%", "0"]
    assert "disk stalled" in text
    tiers = [line for line in text.splitlines() if line.startswith("device")][1].split()
    assert tiers[-5:] == ["50%", "50", "100", "12", "1.0"]


def test_what_was_borrowed_and_recomputed_stands_apart():
    history, later = History(), seen(12, 100, 1000, 50, approximate_tokens=850)
    history.add(seen(10, 100, 900))
    history.add(later)
    text = text_of(render("here", later, history.intervals()))
    assert row(text, "borrowed (approximate)")[-3:] == ["43.6%", "89.5%", "850"]
    assert row(text, "recomputed")[-3:] == ["2.6%", "5.3%", "50"]
    assert row(text, "computed")[-3:] == ["48.7%", "5.3%", "950"]
    assert "exact 5.1%   borrowed (approximate) 43.6%" in text


def test_once_there_is_no_column_for_what_takes_two_looks():
    text = text_of(render("here", seen(12, 190, 910), None))
    assert "last 60 s" not in text
    assert "evicted/s" not in text
    assert row(text, "device")[-2:] == ["17.3%", "190"]
    tiers = [line for line in text.splitlines() if line.startswith("device")][1].split()
    assert tiers[-4:] == ["50%", "50", "100", "12"]
    assert "hit ratio since the start   exact 17.3%   borrowed (approximate) 0.0%" in text


def test_documents_and_requests_are_listed_with_the_reason_for_what_was_computed():
    tree = TreeSnapshot(
        tuple(DocumentBlocks((f"d{n}",), 1, n, BlocksByTier(host=30 - n)) for n in range(12)),
        other_documents=5,
    )
    request = ObservedRequest(
        "r",
        0.0,
        0.25,
        1.5,
        200,
        100,
        (),
        (
            DocumentSource("[red]salt", 100, CachedTokens(), "it was evicted"),
            DocumentSource("tides", 100, CachedTokens(host=100)),
            DocumentSource("reefs", 100, CachedTokens(), "", CachedTokens(device=40), 60),
        ),
        borrowed_tokens=40,
    )
    text = text_of(render("here", seen(9, 1, 1, tree=tree, requests=(request,)), ()))
    assert "[red]salt (it was evicted)" in text
    assert "tides" not in text
    assert "reefs" not in text
    assert "50%       20%" in text
    assert "0.25 s" in text
    assert row(text, "d3")[1:] == ["3", "1", "-", "27", "-"]
    assert "and 9 more" in text


def test_what_is_wrong_stands_on_top():
    text = text_of(render("here", Observation(0.0, TierCounters(), problem="[it] is gone"), ()))
    assert "[it] is gone" in text.splitlines()[1]


def test_it_goes_on_until_it_is_interrupted():
    class Observer:
        name = "scripted"

        def observe(self, *, with_tree: bool) -> Observation:
            return seen(1.0, 1, 1)

    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(Observer(), 2.0, Console(file=StringIO()), sleep)
    assert naps == [2.0] * 3


@pytest.mark.parametrize("command", ["top", "dashboard"])
def test_what_is_no_url_is_refused(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, "ftp://somewhere"]) == 1
    assert "is no URL of a server" in capsys.readouterr().err


def test_a_key_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["top", "localhost:1", "--api-key-env", "NOT_SET_ANYWHERE"]) == 1
    assert "NOT_SET_ANYWHERE is not set" in capsys.readouterr().err


def test_once_ends_with_an_error_if_nothing_can_be_seen(capsys: pytest.CaptureFixture[str]):
    assert main(["top", "127.0.0.1:9", "--once"]) == 1
    said = capsys.readouterr().out
    assert "cannot be read" in said
    assert "computed" not in said, "figures of nothing"


def test_nothing_that_a_server_tells_steers_the_terminal():
    evil = "\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2Ja\nforged line\u202e"
    blocks = BlocksByTier(device=3)
    tree = TreeSnapshot(documents=(DocumentBlocks((evil,), 1, 1, blocks),), held=blocks)
    document = DocumentSource(evil, 50, CachedTokens(), evil)
    request = ObservedRequest("r", 0.0, 0.1, 0.2, 50, 0, (), (document,))
    text = text_of(render(evil, seen(10, 1, 1, tree=tree, requests=(request,), problem=evil), None))
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert not any(line.startswith("forged line") for line in text.splitlines())
    assert r"\x1b]52;c" in text
