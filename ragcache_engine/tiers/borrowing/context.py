"""The value that tells how a document is stored for those who borrow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Context(NamedTuple):
    """What a donor stores around its document.

    document, token_ids: another document that stands before it, and its tokens with the text behind it.
    last_token: the token with which the document itself ends where another one follows; None if that is
      not known.
    text: the other document's text, for a backend that reads text; token_ids is then empty.
    """

    document: str
    token_ids: Sequence[int]
    last_token: int | None = None
    text: str | None = None
