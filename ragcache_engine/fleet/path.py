"""What routing knows of a prompt: a key for each beginning of it that another prompt may share.

Tensors are reused only behind the same text. So the parts of a prompt (the system text, then each
document) are chained: a part's key stands for the part, all parts before it, and the tenant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

Key = bytes

KEY_BYTES = 12
"""Enough that no two of a billion beginnings have the same key."""

PIECE_CHARACTERS = 512
"""How long the pieces are into which a prompt without documents is cut."""

MOST_PARTS = 64
"""Parts behind these are not told apart: by then, the prompt has long found its replica."""


@dataclass(frozen=True, slots=True)
class RoutingPath:
    """The beginnings of a prompt, the shortest first.

    keys: one for the system text, and one for each part after it. sizes: of the part that ends each
      beginning, in tokens or characters; one unit in all paths of a fleet.
    """

    keys: tuple[Key, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.keys or len(self.keys) != len(self.sizes):
            raise ValueError("a path has at least one key, and a size for each")

    @property
    def size(self) -> int:
        """The size of the whole prompt, as far as others may share it."""
        return sum(self.sizes)


def path_of_parts(
    tenant: str | None, system: tuple[str, int], documents: Iterable[tuple[str, int]]
) -> RoutingPath:
    """Make the path of a prompt from its system text and its documents, each with its size.

    A system text may be empty. The names need not be texts: anything that differs where the text does.
    """
    key = _chain(b"", tenant or "")
    keys: list[Key] = []
    sizes: list[int] = []
    for name, size in [system, *documents][:MOST_PARTS]:
        key = _chain(key, name)
        keys.append(key)
        sizes.append(size)
    return RoutingPath(tuple(keys), tuple(sizes))


def path_of_text(
    tenant: str | None, text: str, piece_characters: int = PIECE_CHARACTERS
) -> RoutingPath:
    """Make the path of a prompt whose documents nobody has named: it is cut into even pieces.

    What is left behind the last whole piece takes no part, as it is most often the question.
    """
    whole = len(text) // piece_characters * piece_characters
    starts = range(0, min(whole, (MOST_PARTS - 1) * piece_characters), piece_characters)
    pieces = [(text[start : start + piece_characters], piece_characters) for start in starts]
    return path_of_parts(tenant, ("", 0), pieces)


def _chain(before: Key, part: str) -> Key:
    # The length of `before` is fixed, so no two different chains are one text.
    return blake2b(before + part.encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()
