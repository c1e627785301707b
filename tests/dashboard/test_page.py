"""The page in a real browser, and who can reach it."""

from __future__ import annotations

import gc
import json
import re
import shutil
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine import ConfigError, Document, EngineClosed, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend

pytest.importorskip("dash")

from ragcache_engine.dashboard.engine_observer import EngineObserver
from ragcache_engine.dashboard.page import CHARTS, find_request
from ragcache_engine.dashboard.serving import Dashboard

SECRET = "Nobody may know that the vault opens at noon"
DOCUMENTS = [
    Document(f"{name}-{number}", f"{SECRET} {number} of {name} " * (8 + 5 * number))
    for number, name in enumerate(("tides", "salt", "tundra", "volcanoes", "monsoon", "reefs"))
]


@pytest.fixture
def busy_engine(engine_on: Callable[..., RAGCacheEngine]) -> RAGCacheEngine:
    """An engine that has answered a few questions, with documents in all tiers."""
    engine = engine_on(MemoryBackend(device_blocks=80, host_blocks=120, disk_blocks=2000))
    fresh = Document("fresh", "Nobody has asked about this one before today " * 20)
    for number in range(30):
        chosen = [DOCUMENTS[number % 6], DOCUMENTS[number * number % 5]]
        found = list({document.id: document for document in chosen}.values())
        question = f"Question {number}, when?"
        with engine.retrieval(question) as search:
            search.found(found)
        text = "\n\n".join([*(document.text for document in found), question])
        engine.generate(text, found)
    engine.generate(f"{fresh.text}\n\nWhat is fresh?", [fresh])
    return engine


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium without a screen."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if program is None:
        pytest.skip("Chromium is not installed; it is a package of Debian's")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


class Visit:
    """One visit of the page, with what the browser asked for and complained about."""

    def __init__(self, browser: Any, url: str, **settings: str) -> None:
        self.page = browser.new_page(viewport={"width": 1400, "height": 1260}, **settings)
        self.hosts: set[str] = set()
        self.complaints: list[str] = []
        self.page.on("request", lambda asked: self.hosts.add(asked.url.split("/")[2]))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.goto(url)
        self.page.wait_for_selector("#tree .slicetext", timeout=60_000)
        self.page.wait_for_selector("#documents .annotation-text", timeout=60_000)

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def texts(self, selector: str) -> list[str]:
        return [text for text in self.page.locator(selector).all_text_contents() if text.strip()]

    def boxes(self, selector: str) -> dict[str, dict[str, float]]:
        """The places of all visible texts."""
        return {
            f"{at} {one.text_content()}": box
            for at, one in enumerate(self.page.locator(selector).all())
            if one.is_visible() and (box := one.bounding_box()) and one.text_content().strip()
        }


@pytest.fixture
def visit(browser: Any, busy_engine: RAGCacheEngine) -> Iterator[Visit]:
    with busy_engine.dashboard() as dashboard:
        visited = Visit(browser, dashboard.url)
        yield visited
        visited.page.close()


def test_the_page_shows_the_tree_the_figures_and_the_last_requests(visit: Visit):
    assert {"tides-0", "reefs-5"} <= set(visit.texts("#tree .slicetext"))
    (figures,) = visit.texts("#figures")
    for said in ("exact hits", "borrowed (approximate)0.0%", "finished31", "diskon", "0 waiting"):
        assert said in figures
    assert len(visit.texts("#timelines .ytick text")) == 10
    assert visit.texts("#fill .ytick text") == ["disk", "host", "device"]
    reasons = " ".join(visit.texts("#documents .annotation-text"))
    assert "computed:" in reasons
    assert visit.complaints == []


def test_it_loads_nothing_from_elsewhere(visit: Visit):
    assert {host.split(":")[0] for host in visit.hosts} == {"127.0.0.1"}


def test_no_text_lies_on_another(visit: Visit):
    for texts in ("#tree .slicetext", "#timelines .ytick text", "#documents .annotation-text"):
        for one, other in combinations(visit.boxes(texts).items(), 2):
            is_drawn_twice = one[1] == other[1]  # as Plotly does with headings of groups
            assert is_drawn_twice or not overlap(one[1], other[1]), (one, other)
    chart = visit.page.locator("#documents").bounding_box()
    for text, box in visit.boxes("#documents .annotation-text").items():
        assert box["x"] + box["width"] <= chart["x"] + chart["width"], text


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    def cover(start: str, size: str) -> float:
        return min(one[start] + one[size], other[start] + other[size]) - max(
            one[start], other[start]
        )

    return cover("x", "width") > 1 and cover("y", "height") > 1


def test_it_stays_up_to_date(visit: Visit, busy_engine: RAGCacheEngine):
    news = Document("breaking-news", "Something that nobody has heard of before today " * 20)
    busy_engine.generate(f"{news.text}\n\nWhat is new?", [news])
    visit.page.wait_for_function(
        "document.querySelector('#tree').textContent.includes('breaking-news')", timeout=60_000
    )
    visit.page.wait_for_function(
        "document.querySelector('#figures').textContent.includes('finished32')", timeout=60_000
    )


def test_a_click_on_a_request_shows_its_documents(visit: Visit):
    before = visit.texts("#documents .ytick text")
    visit.page.wait_for_timeout(500)  # Plotly has drawn what it animates
    oldest = visit.page.locator("#timelines .point path").first.bounding_box()
    visit.page.mouse.click(oldest["x"] + oldest["width"] / 2, oldest["y"] + oldest["height"] / 2)
    chosen = visit.page.locator("#request")
    visit.page.wait_for_function(
        "!document.querySelector('#request').textContent.includes('the last one')",
        timeout=30_000,
    )
    assert chosen.text_content()
    assert before


READABLE = """names => names.flatMap(name => [...document.querySelectorAll(name)]).map(element => {
    const numbers = colour => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const light = colour => numbers(colour).slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    let behind = element, ground = "";
    for (; behind; behind = behind.parentElement) {
        ground = getComputedStyle(behind).backgroundColor;
        if ((numbers(ground)[3] ?? 1) > 0) break;
    }
    const style = getComputedStyle(element);
    const [one, other] = [light(element.closest("svg") ? style.fill : style.color), light(ground)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return {name: element.textContent, ground: light(ground), contrast};
})"""
"""For the texts of these selectors: how light their ground is, and the contrast of text and ground."""

TEXTS = ["h1", "h2", "label", "#status", "#figures dt", "#figures dd", "#request"]
TEXTS += [".xtick text", ".ytick text", ".legendtext", ".annotation-text", ".xtitle"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_as_light_or_dark_as_the_reader_likes_and_all_texts_can_be_read(
    browser: Any, busy_engine: RAGCacheEngine, scheme: str
):
    with busy_engine.dashboard() as dashboard:
        visited = Visit(browser, dashboard.url, color_scheme=scheme)
        seen = visited.page.evaluate(READABLE, TEXTS)
        visited.page.close()
    assert len(seen) > 40
    for text in seen:
        assert (text["ground"] < 0.1) is (scheme == "dark"), text
        assert text["contrast"] >= 4.5, text  # what WCAG asks for


def test_a_reader_who_does_not_see_it_is_told_what_is_what(visit: Visit):
    page = visit.page
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.get_by_role("heading", level=1).count() == 1
    for name in ("The last requests", "Evictions", "How full the tiers are"):
        assert page.get_by_role("region", name=name).count() == 1
    assert page.get_by_role("button", name="Request the last one").count() == 1


def test_a_request_can_be_chosen_without_a_mouse(visit: Visit):
    page = visit.page
    before = visit.texts("#documents .ytick text")

    def choose() -> bool:
        for _ in range(40):
            if page.evaluate("document.activeElement.closest('#request') !== null"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_timeout(1000)
        if page.query_selector(".dash-dropdown-content :focus") is None:
            return False
        for _ in range(4):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_timeout(1000)
        text = page.text_content("#request")
        return text is not None and "the last one" not in text

    # The page draws its list anew while requests come, which takes the focus from an open one.
    assert any(choose() for _ in range(10))
    page.wait_for_function(
        "before => [...document.querySelectorAll('#documents .ytick text')]"
        ".map(one => one.textContent).join() !== before",
        arg=",".join(before),
        timeout=30_000,
    )


def test_when_nobody_answers_any_more_it_says_since_when_and_greys_what_is_old(
    browser: Any, busy_engine: RAGCacheEngine
):
    with Dashboard(
        EngineObserver("busy", busy_engine._runtime), "127.0.0.1", 0, every_s=0.2
    ) as dashboard:
        visited = Visit(browser, dashboard.url)
        page = visited.page
        page.wait_for_function(
            "document.querySelector('#silence').hidden"
            " && getComputedStyle(document.querySelector('main')).opacity === '1'"
        )
    page.wait_for_selector("#silence:visible", timeout=60_000)
    assert re.search(r"No answer since \d\d:\d\d:\d\d", page.locator("#silence").text_content())
    assert float(page.evaluate("getComputedStyle(document.querySelector('main')).opacity")) < 0.8
    assert "finished31" in "".join(visited.texts("#figures")), "the last figures stay"
    page.close()


@pytest.mark.parametrize("show_text", [False, True])
def test_texts_of_documents_leave_the_process_only_when_asked_for(
    busy_engine: RAGCacheEngine, show_text: bool
):
    with busy_engine.dashboard(show_text=show_text) as dashboard:
        told = ""
        for _ in range(100):
            told = ask_for_update(dashboard)
            if "tides-0" in told:
                break
            threading.Event().wait(0.1)
        assert "tides-0" in told
        assert (SECRET in told) is show_text


def ask_for_update(dashboard: Dashboard) -> str:
    """Ask the page's own door for everything that the page would show."""
    outputs = [{"id": "status", "property": "children"}, {"id": "figures", "property": "children"}]
    outputs[1:1] = [{"id": "seen", "property": "children"}]
    outputs += [{"id": "request", "property": "options"}]
    outputs += [{"id": name, "property": "figure"} for name in CHARTS]
    names = "...".join(f"{each['id']}.{each['property']}" for each in outputs)
    body = {
        "output": f"..{names}..",
        "outputs": outputs,
        "inputs": [
            {"id": "tick", "property": "n_intervals", "value": 1},
            {"id": "request", "property": "value", "value": None},
        ],
        "changedPropIds": ["tick.n_intervals"],
    }
    request = urllib.request.Request(
        f"{dashboard.url}_dash-update-component",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        content: str = answer.read().decode()
    return content


def test_only_this_machine_reaches_it_and_under_no_strange_name(memory_engine: RAGCacheEngine):
    with memory_engine.dashboard() as dashboard:
        assert dashboard.url.startswith("http://127.0.0.1:")
        strange = urllib.request.Request(dashboard.url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(strange, timeout=10)
        assert refused.value.code == 400


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "::ffff:127.0.0.1", "127.1"]
)
def test_no_loopback_address_takes_a_strange_name(memory_engine: RAGCacheEngine, host: str):
    with memory_engine.dashboard(host=host) as dashboard:
        for name in ("evil.example", "localhost.evil.example", "10.0.0.1", "[:::1]"):
            assert status_at(dashboard, name) == 400
        for name in ("localhost", "LOCALHOST:80", "127.0.0.3", "[::1]", ""):
            assert status_at(dashboard, name) == 200


def status_at(dashboard: Dashboard, name: str) -> int:
    """Ask for the page under a name; "": the one in its address."""
    asked = urllib.request.Request(dashboard.url, headers={"Host": name} if name else {})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_whoever_opens_it_to_others_takes_any_name(memory_engine: RAGCacheEngine):
    with memory_engine.dashboard(host="0.0.0.0") as dashboard:
        assert status_at(dashboard, "cache.example") == 200


@pytest.mark.parametrize("folder", [".", "assets"])
def test_no_file_of_the_working_folder_is_served(
    memory_engine: RAGCacheEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "private.js").write_text("alert(1)")
    monkeypatch.chdir(tmp_path)
    with memory_engine.dashboard() as dashboard:
        with urllib.request.urlopen(dashboard.url, timeout=10) as page:
            assert b"private.js" not in page.read()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{dashboard.url}assets/private.js", timeout=10)
        assert refused.value.code == 404


def test_it_ends_with_the_engine_and_leaves_no_thread(engine_on: Callable[..., RAGCacheEngine]):
    engine = engine_on(MemoryBackend())
    dashboard = engine.dashboard()
    url = dashboard.url
    engine.close()
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(url, timeout=5)
    assert not [one for one in threading.enumerate() if one.name.startswith("ragcache-dashboard")]
    dashboard.close()  # a second time
    with pytest.raises(EngineClosed):
        engine.dashboard()


def test_a_page_that_was_closed_is_not_kept(memory_engine: RAGCacheEngine):
    page = memory_engine.dashboard()
    page.close()
    closed = weakref.ref(page)
    del page
    gc.collect()
    assert closed() is None


def test_a_port_that_is_taken_is_refused_by_name(memory_engine: RAGCacheEngine):
    with memory_engine.dashboard() as first:
        port = int(first.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigError, match="choose another port"):
            memory_engine.dashboard(port=port)


def test_without_the_extra_the_error_says_what_to_install(
    memory_engine: RAGCacheEngine, monkeypatch: pytest.MonkeyPatch
):
    import sys

    monkeypatch.setitem(sys.modules, "dash", None)
    monkeypatch.delitem(sys.modules, "ragcache_engine.dashboard.serving")
    monkeypatch.delitem(sys.modules, "ragcache_engine.dashboard.page")
    with pytest.raises(ConfigError, match=r"ragcache-integrations\[dashboard\]"):
        memory_engine.dashboard()


def test_a_notebook_shows_the_page(memory_engine: RAGCacheEngine):
    with memory_engine.dashboard() as dashboard:
        assert f'<iframe src="{dashboard.url}"' in dashboard._repr_html_()


def test_without_a_choice_the_last_request_with_documents_is_shown(busy_engine: RAGCacheEngine):
    from ragcache_engine.dashboard.engine_observer import describe_request

    busy_engine.generate("No document at all?")
    requests = [describe_request(r, with_question=False) for r in busy_engine.recent_requests()]
    shown = find_request(requests, None)
    assert shown is requests[-2]
    assert find_request([], None) is None
