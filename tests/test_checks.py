"""What callers pass in is checked at the door, by type and by value."""

from __future__ import annotations

import pytest

from ragcache_engine import Document, InvalidArgument, SamplingOptions
from ragcache_engine.checks import require_items, require_tenant, require_text

np = pytest.importorskip("numpy")

NAN, INF = float("nan"), float("inf")

BAD_OPTIONS = {
    "max_tokens": [0, -1, 1.5, True, "3", 2**63, 10**400],
    "temperature": [-0.1, 2.1, NAN, INF, "1", True, None],
    "top_p": [0, 1.5, "0.5", True, NAN],
    "top_k": [-1, 1.5, True, 2**63, None],
    "min_p": [-0.1, 1.1, "x", True],
    "presence_penalty": [NAN, INF, "1", 10**400, 2.5],
    "frequency_penalty": [NAN, None, -3],
    "repetition_penalty": [NAN, INF, "1", 0],
    "seed": [1.5, "x", 2**63, -(2**70), True],
    "ignore_eos": ["no", None, 2, []],
    "skip_special_tokens": ["x", None, 5],
    "add_special_tokens": [None, 1],
    "stop": ["text", ("\ud800",), (1,), ("",), 5],
    "guide": ["{}", {}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_OPTIONS.items() for value in values]
)
def test_an_option_that_vllms_process_could_not_read_is_refused_when_it_is_made(name, value):
    with pytest.raises(InvalidArgument, match=name if name != "stop" else "stop"):
        SamplingOptions(**{name: value})


def test_an_error_about_an_argument_is_what_python_would_raise_and_what_we_catch():
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        SamplingOptions(max_tokens=0)
    with pytest.raises(TypeError, match=r"whole number, got 1\.5 \(float\)"):
        SamplingOptions(max_tokens=1.5)


def test_numbers_from_arrays_are_numbers():
    made = SamplingOptions(
        max_tokens=np.int64(5), temperature=np.float32(0.5), seed=np.uint8(3), top_k=np.int32(2)
    )
    assert made == SamplingOptions(max_tokens=5, temperature=0.5, seed=3, top_k=2)
    assert type(made.max_tokens) is int
    assert type(made.temperature) is float


@pytest.mark.parametrize("tenant", [42, b"x", [], ("a",), "\ud800", ""])
def test_a_tenant_is_a_name(tenant):
    with pytest.raises(InvalidArgument, match="tenant"):
        require_tenant(tenant)


def test_no_tenant_and_a_named_one_are_tenants():
    assert require_tenant(None) is None
    assert require_tenant("alice") == "alice"


@pytest.mark.parametrize(("name", "text"), [(5, "text"), ("\ud800", "text"), ("id", None)])
def test_a_document_has_an_id_and_a_text(name, text):
    with pytest.raises(InvalidArgument, match="a document's"):
        Document(name, text)


def test_half_a_character_is_told_with_its_place():
    with pytest.raises(InvalidArgument, match=r"a prompt holds half a character .* at position 3"):
        require_text("abc\ud83d", "a prompt")


def test_the_wrong_one_of_several_is_named():
    with pytest.raises(
        InvalidArgument, match=r"documents\[1\] must be a Document, got 'text' \(str\)"
    ):
        require_items([Document("a", "a"), "text"], Document, "documents")
    with pytest.raises(InvalidArgument, match="documents must be a sequence of Document"):
        require_items("text", Document, "documents")
