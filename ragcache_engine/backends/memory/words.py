"""A tokenizer without a vocabulary: each word is a token, together with the space before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

from ragcache_engine.values import TokenizedPrompt

_WORD = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


class WordTokenizer:
    """Numbers each word by its checksum, and remembers the words, so that it can detokenize them."""

    def __init__(self) -> None:
        self._words: dict[int, str] = {}

    def tokenize(self, text: str) -> TokenizedPrompt:
        matches = list(_WORD.finditer(text))
        ids = [self.token_id(match.group()) for match in matches]
        return TokenizedPrompt(text, ids, [match.span() for match in matches])

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens. Raises KeyError for one that this tokenizer has not made."""
        return "".join(self._words[token_id] for token_id in token_ids)

    def token_id(self, word: str) -> int:
        token_id = crc32(word.encode())
        self._words[token_id] = word
        return token_id


def split_words(text: str) -> list[str]:
    """Split a text into the texts of its tokens."""
    return [match.group() for match in _WORD.finditer(text)]
