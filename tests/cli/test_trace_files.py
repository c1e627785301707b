"""Traces are read, made from query logs, and refused with the line's number."""

from __future__ import annotations

import json

import pytest

from ragcache_cli.errors import BadTrace
from ragcache_cli.trace_files import read_questions, read_trace
from ragcache_engine.simulation.traces import Trace


def test_a_trace_has_a_request_a_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"documents": ["a", "b"], "tokens": [3, 5]},
        {"documents": ["b"], "tokens": [5]},
        {"documents": ["a", "b"], "tokens": [3, 5]},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_trace(path) == Trace((("a", "b"), ("b",), ("a", "b")), {"a": 3, "b": 5})


def test_a_token_count_is_needed_once(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"documents": ["a"], "tokens": [3]}\n\n{"documents": ["a", "a"]}\n')
    assert read_trace(path) == Trace((("a",), ("a", "a")), {"a": 3})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("no json", "line 2 is no request"),
        ('{"docs": ["a"]}', "line 2 is no request"),
        ('["a"]', "line 2 is no request"),
        ('{"documents": ["a", "b"], "tokens": [1]}', "2 documents and 1 token counts"),
        ('{"documents": ["new"]}', "no token count for 'new'"),
        ('{"documents": ["new"], "tokens": [0]}', "at least 1"),
    ],
)
def test_what_is_no_request_is_named_with_its_line(tmp_path, line, says):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"documents": ["a"], "tokens": [3]}\n' + line + "\n")
    with pytest.raises(BadTrace, match=says):
        read_trace(path)


def test_an_empty_or_missing_file_is_no_trace(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(BadTrace, match="no request"):
        read_trace(tmp_path / "empty.jsonl")
    with pytest.raises(BadTrace, match="cannot be read"):
        read_trace(tmp_path / "missing.jsonl")


def test_a_query_log_may_be_plain_or_json(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("Why?\n" + json.dumps({"query": "How?"}) + "\n12\n" + '{"other": 1}\n')
    assert read_questions(path) == ["Why?", "How?", "12", '{"other": 1}']
