"""What the docstrings of the model classes show, as it stands there."""

import doctest

import pytest

from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_the_docstring_runs(kind):
    names = {kind.__name__: kind}
    (example,) = doctest.DocTestFinder(recurse=False).find(kind, kind.__name__, globs=names)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
