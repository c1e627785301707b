import json
from pathlib import Path

import pytest

from ragcache_cli.corpus_sources import Section, Unreadable
from ragcache_cli.errors import EmptyCorpus
from ragcache_cli.files import folder_sources, read_file


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_text_file_is_titled_by_its_name(tmp_path):
    assert read_file(written(tmp_path, "notes.txt", "Hello.")) == [Section("notes", "Hello.")]


def test_markdown_and_restructured_text_are_titled_by_their_first_heading(tmp_path):
    (markdown,) = read_file(written(tmp_path, "a.md", "intro\n\n# The heading\n\ntext"))
    (rst,) = read_file(written(tmp_path, "b.rst", "The title\n=========\n\ntext"))
    assert (markdown.title, rst.title) == ("The heading", "The title")


def test_html_gives_its_title_and_the_words_a_reader_sees(tmp_path):
    page = (
        "<html><head><title>A &amp; B</title><style>p {}</style></head><body>"
        "<nav>Home</nav><h1>Head</h1><p>One <b>bold</b>, <i>two</i>.<br>Three</p>"
        "<script>alert(1)</script><pre>x = 1\n  y</pre><li>last</body></html>"
    )
    (section,) = read_file(written(tmp_path, "page.html", page))
    assert section.title == "A & B"
    assert section.text == "Head\n\nOne bold, two.\nThree\n\nx = 1\n  y\n\nlast"


def test_html_without_a_title_or_with_an_unclosed_block_still_reads(tmp_path):
    (section,) = read_file(written(tmp_path, "bare.htm", "<p>first<p>second"))
    assert section == Section("bare", "first\n\nsecond")


def test_jsonl_gives_a_section_a_line(tmp_path):
    records = [{"text": "a", "title": "T", "id": 7}, {"text": "b"}]
    lines = "\n".join(map(json.dumps, records)) + "\n\n"
    assert read_file(written(tmp_path, "data.jsonl", lines)) == [
        Section("T", "a", "7"),
        Section("data", "b", "2"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"\xff\xfe\x00bad", "not UTF-8"),
        ("a.txt", b"  \n ", "no text"),
        ("a.html", b"<script>x</script>", "no text"),
        ("a.jsonl", b'{"text": "a"}\nnonsense', "line 2 is no JSON"),
        ("a.jsonl", b'{"body": "a"}', 'line 1 is no object with a "text"'),
    ],
)
def test_a_file_without_text_says_why(tmp_path, name, content, reason):
    with pytest.raises(Unreadable, match=reason):
        read_file(written(tmp_path, name, content))


def test_a_folder_is_walked_by_name_past_hidden_and_foreign_files(tmp_path):
    for name in ("b.md", "sub/a.txt", ".git/x.txt", ".ragcache/y.txt", "c.png", ".hidden.txt"):
        written(tmp_path, name, "text")
    assert [source.name for source in folder_sources(tmp_path)] == ["b.md", "sub/a.txt"]


def test_a_missing_folder_and_one_without_readable_kinds_are_named_errors(tmp_path):
    with pytest.raises(EmptyCorpus, match="no folder"):
        folder_sources(tmp_path / "absent")
    written(tmp_path, "picture.png", b"\x89PNG")
    with pytest.raises(EmptyCorpus, match=r"\.jsonl, \.md"):
        folder_sources(tmp_path)
