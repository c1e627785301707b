"""What LlamaHub reads from the package, and that it is true."""

import doctest
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from ragcache_integrations.llamaindex import llm, retriever

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture
def hub():
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["llamahub"]


def test_every_public_class_has_an_author_and_no_other(hub):
    package = import_module(hub["import_path"])
    classes = {name for name in package.__all__ if isinstance(getattr(package, name), type)}
    assert set(hub["class_authors"]) == classes
    assert all(hub["class_authors"].values())


def test_it_says_whether_there_are_examples(hub):
    examples = PYPROJECT.parent / "examples"
    if not examples.is_dir():
        pytest.skip("the examples are not here")
    assert hub["contains_example"] == any(examples.glob("*llama*"))


@pytest.mark.parametrize("module", [llm, retriever])
def test_the_examples_in_the_docstrings_run(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
