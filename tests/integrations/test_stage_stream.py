import threading

import pytest

from ragcache_integrations.stage_stream import SearchStopped, stream_search


def test_closing_it_stops_the_search():
    stopped = threading.Event()

    def endless(put):
        try:
            while True:
                put(["a"], 0.1)
        except SearchStopped:
            stopped.set()
            raise

    stages = stream_search(endless)
    assert next(stages) == (["a"], 0.1, False)
    stages.close()
    assert stopped.is_set()
    assert "ragcache-search" not in {thread.name for thread in threading.enumerate()}


def test_what_the_search_raises_is_raised_to_the_reader():
    def fails(put):
        put(["a"], 0.5)
        raise KeyError("lost")

    stages = stream_search(fails)
    assert next(stages)[0] == ["a"]
    with pytest.raises(KeyError, match="lost"):
        next(stages)
