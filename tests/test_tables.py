"""Small tables, for a terminal and for a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.tables import BAR_CHARACTERS, Share, Table

HOSTILE = '<script>alert("1")</script> & "so"'


class Tags(HTMLParser):
    """Collects the elements and the texts of a page, and whether all elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_values_stand_in_a_column():
    text = Table("Tea", [("cups", "4"), ("in the pot", "1.2 l")]).as_text()
    assert text == "Tea\n  cups        4\n  in the pot  1.2 l"


def test_a_bar_shows_the_shares_and_says_them():
    bar = [Share("device", 0.5), Share("host", 0.25), Share("computed", 0.25)]
    last = Table("Cache", [], bar).as_text().splitlines()[-1]
    assert last == "  [################========--------]  device 50%, host 25%, computed 25%"


def test_what_users_wrote_cannot_break_out_of_the_page():
    page = Table(HOSTILE, [(HOSTILE, HOSTILE)], [Share(HOSTILE, 1.0)]).as_html()
    tags = Tags(page)
    assert "script" not in tags.seen
    assert tags.text.count(HOSTILE) == 4
    assert not tags.open


def test_the_page_has_no_colour_of_its_own_for_text_and_ground_and_loads_nothing():
    page = Table("Cache", [("a", "b")], [Share("device", 1.0)]).as_html()
    assert "background:transparent" in page
    assert "color:inherit" in page
    assert "http" not in page
    assert "class=" not in page, "a notebook's own styles do not reach in"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=4).filter(any))
def test_a_bar_is_never_longer_than_its_frame(counts: list[int]):
    bar = [Share("x", count / sum(counts)) for count in counts]
    line = Table("Cache", [], bar).as_text().splitlines()[-1]
    assert line.index("]") - line.index("[") == BAR_CHARACTERS + 1
