from ragcache_cli.passages import cut, paragraphs


def words(text: str) -> int:
    return len(text.split())


def passages_of(text: str, most: int = 10) -> list[str]:
    return [passage.text for passage in cut("s", "t", text, words, most)]


def test_paragraphs_share_a_passage_while_they_fit():
    assert passages_of("one two\n\nthree four\n\nfive six seven eight nine ten") == [
        "one two\n\nthree four\n\nfive six seven eight nine ten"
    ]


def test_a_cut_falls_between_paragraphs():
    first, second = "a b c d e f", "g h i j k l"
    assert passages_of(f"{first}\n\n{second}") == [first, second]


def test_a_long_paragraph_is_cut_between_lines_and_a_long_line_between_words():
    assert passages_of("a b c d\ne f g h", most=4) == ["a b c d", "e f g h"]
    assert passages_of("a b c d e f", most=4) == ["a b c d", "e f"]


def test_a_tiny_rest_joins_the_passage_before_it():
    body = " ".join(["word"] * 16)
    assert passages_of(f"{body}\n\nend", most=16) == [f"{body}\n\nend"]


def test_no_word_is_lost_or_doubled():
    text = "\n\n".join(f"{n} " * (n % 23 + 1) for n in range(60))
    assert " ".join(passages_of(text, most=12)).split() == text.split()


def test_a_blank_text_has_no_passages():
    assert passages_of(" \n\n \n") == []


def test_indented_code_stays_indented_inside_a_passage():
    assert paragraphs("Say:\n\n   x = 1\n   y = 2\n\nDone.") == [
        "Say:",
        "   x = 1\n   y = 2",
        "Done.",
    ]
    assert passages_of("Say:\n\n   x = 1\n\nDone.") == ["Say:\n\n   x = 1\n\nDone."]


def test_passages_are_numbered_and_shown_with_their_title():
    one, two = cut("file.txt", "Title", "a b c\n\nd e f", words, most_tokens=3)
    assert (one.id, two.id) == ("file.txt:0", "file.txt:1")
    assert one.shown == "Title\n\na b c"
