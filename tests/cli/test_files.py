import json
import os
from pathlib import Path

import pytest

from ragcache_cli.corpus_sources import Section, Unreadable
from ragcache_cli.errors import EmptyCorpus
from ragcache_cli.files import describe_left_out, folder_sources, read_file


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


def test_a_line_of_jsonl_ends_where_json_says(tmp_path):
    text = "One\u2028two\u0085three."
    lines = json.dumps({"text": text}, ensure_ascii=False) + "\r\n"
    assert [one.text for one in read_file(written(tmp_path, "data.jsonl", lines))] == [text]


def test_jsonl_gives_a_section_a_line(tmp_path):
    records = [{"text": "a", "title": "T", "id": 7}, {"text": "b"}]
    lines = "\n".join(map(json.dumps, records)) + "\n\n"
    assert read_file(written(tmp_path, "data.jsonl", lines)) == [
        Section("T", "a", "7"),
        Section("data", "b", "2"),
    ]


def write_pdf(path: Path, pages: list[str], title: str = "", password: str = "") -> Path:
    """Write a PDF with a line of text on each page."""
    pypdf = pytest.importorskip("pypdf")
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = pypdf.PdfWriter()
    kind = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(name): NameObject(one) for name, one in kind.items()})
    for text in pages:
        page = writer.add_blank_page(300, 300)
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        drawn = DecodedStreamObject()
        drawn.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = drawn
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


def test_a_pdf_gives_a_section_for_each_page_with_text(tmp_path):
    pages = ["The moon pulls the oceans.", "", "Yeast lets bread rise."]
    assert read_file(write_pdf(tmp_path / "notes.pdf", pages, "Of tides")) == [
        Section("Of tides", pages[0], "1"),
        Section("Of tides", pages[2], "3"),
    ]
    assert read_file(write_pdf(tmp_path / "bare.pdf", pages))[0].title == "bare"


@pytest.mark.parametrize(
    ("pages", "password", "reason"),
    [([""], "", "no text in it"), (["Hello."], "secret", "a password protects it")],
)
def test_a_pdf_that_cannot_be_read_says_why(tmp_path, pages, password, reason):
    with pytest.raises(Unreadable, match=reason):
        read_file(write_pdf(tmp_path / "a.pdf", pages, password=password))


@pytest.mark.parametrize("name", ["a.pdf", "a.docx"])
@pytest.mark.parametrize("content", [b"", b"%PDF-1.7", b"PK\x03\x04 nothing", b"\x00" * 5000])
def test_a_damaged_file_says_so(tmp_path, name, content):
    pytest.importorskip("docx")
    pytest.importorskip("pypdf")
    with pytest.raises(Unreadable, match="that can be read"):
        read_file(written(tmp_path, name, content))


def test_a_word_file_gives_its_paragraphs_and_tables_in_order(tmp_path):
    docx = pytest.importorskip("docx")
    file = docx.Document()
    file.core_properties.title = "Of tides"
    file.add_heading("Tides", 1)
    file.add_paragraph("The moon pulls the oceans.")
    table = file.add_table(2, 2)
    for at, text in enumerate(("place", "metres", "Fundy", "16")):
        table.cell(at // 2, at % 2).text = text
    file.add_paragraph("So they rise.")
    file.save(str(tmp_path / "a.docx"))
    assert read_file(tmp_path / "a.docx") == [
        Section(
            "Of tides",
            "Tides\n\nThe moon pulls the oceans.\n\nplace\tmetres\nFundy\t16\n\nSo they rise.",
        )
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


def test_files_of_other_kinds_are_counted_by_kind_and_named(tmp_path):
    for name in ("notes.md", "report.odt", "Minutes.PPTX", "sub/old.odt", "README", ".git/x.odt"):
        written(tmp_path, name, "text")
    (said,) = describe_left_out(tmp_path)
    assert said.startswith("files of other kinds: ")
    assert "2 .odt (report.odt, sub/old.odt), 1 .pptx (Minutes.PPTX), 1 without a kind" in said
    assert "pandoc" in said
    assert "loaders of LangChain or LlamaIndex" in said


def test_of_many_files_of_a_kind_a_few_are_named(tmp_path):
    for number in range(9):
        written(tmp_path, f"{number}.png", b"\x89PNG")
    assert "9 .png (0.png, 1.png, 2.png, ...)" in describe_left_out(tmp_path)[0]


def test_a_folder_that_is_read_whole_leaves_nothing_out(tmp_path):
    written(tmp_path, "notes.md", "text")
    assert describe_left_out(tmp_path) == []


def test_a_folder_of_other_kinds_alone_says_how_to_have_them_read(tmp_path):
    written(tmp_path, "report.odt", b"text")
    with pytest.raises(EmptyCorpus, match=r"1 \.odt \(report\.odt\).*pandoc"):
        folder_sources(tmp_path)


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch):
    """Makes a folder unreadable, to a superuser too."""

    def lock(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        scan = os.scandir

        def refuse(path):
            if Path(path) == folder:
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", refuse)

    return lock


def test_a_corpus_that_cannot_be_listed_says_so(tmp_path, locked):
    locked(tmp_path / "private")
    with pytest.raises(EmptyCorpus, match=r"private cannot be read: Permission denied"):
        folder_sources(tmp_path / "private")


def test_a_folder_below_that_cannot_be_listed_is_named_and_the_others_are_read(tmp_path, locked):
    written(tmp_path, "notes.md", "text")
    locked(tmp_path / "private")
    assert [source.name for source in folder_sources(tmp_path)] == ["notes.md"]
    assert describe_left_out(tmp_path) == ["the folder private cannot be read: Permission denied"]


def test_a_file_that_cannot_be_reached_is_left_out_with_its_reason(tmp_path):
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere.md")
    (source,) = folder_sources(tmp_path)
    with pytest.raises(Unreadable, match="No such file"):
        source.read()


def test_a_pipe_is_left_out_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "endless.txt")
    (source,) = folder_sources(tmp_path)
    assert source.digest() == "unreadable"
    with pytest.raises(Unreadable, match="no regular file"):
        source.read()
