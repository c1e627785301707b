from ragcache_cli.python_topics import STATEMENTS, python_topics, without_repeats

LONG = "A paragraph that is long enough to be told apart from one that stands everywhere by chance."


def test_a_paragraph_stays_only_in_its_most_special_topic():
    topics = {"chapter": f"Intro to it all.\n\n{LONG}\n\nMore text about it.", "part": LONG}
    texts = {section.title: section.text for section in without_repeats(topics)}
    assert texts == {"part": LONG, "chapter": "Intro to it all.\n\nMore text about it."}


def test_short_paragraphs_may_repeat():
    topics = {"a": "For example:", "b": "For example:\n\nelse"}
    assert [section.text for section in without_repeats(topics)] == [
        "For example:",
        "For example:\n\nelse",
    ]


def test_every_python_has_topics_to_index():
    (source,) = python_topics()
    assert sum(len(section.text) for section in source.read()) > 100_000
    assert source.digest() == python_topics()[0].digest()


def test_some_topics_can_be_chosen():
    (source,) = python_topics(STATEMENTS)
    titles = {section.title for section in source.read()}
    # Which of them there are differs a little with the Python.
    assert {"with", "try", "function", "import"} <= titles <= STATEMENTS
    assert source.digest() != python_topics()[0].digest()
