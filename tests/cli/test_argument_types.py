"""What is typed is read, or refused before anything starts."""

from __future__ import annotations

import argparse

import pytest

from ragcache_cli.commands.argument_types import size_in_bytes


def test_sizes_have_units_or_none():
    assert [size_in_bytes(text) for text in ("32MiB", "1kB", "7")] == [32 << 20, 1000, 7]


@pytest.mark.parametrize("text", ["0", "0MiB", "-1MiB", "much", ""])
def test_what_is_no_size_or_none_at_all_is_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="a size such as 32MiB is needed"):
        size_in_bytes(text)
