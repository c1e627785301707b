"""Bloom filter over document ids: false positives, no false negatives.

Source: Bloom, Space/time trade-offs in hash coding with allowable errors, 1970.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b

BITS_PER_DOCUMENT = 10
"""Each document sets four bits. With ten or more for each, up to 1.2% of strangers look like members."""

MOST_BITS = 1 << 19
"""64 KiB: enough for 52,000 documents. Of more documents, more strangers look like members."""


class BloomFilter:
    """Remembers which documents were added. Its size is fixed at its birth."""

    __slots__ = ("_bits", "_mask")

    def __init__(self, documents: int) -> None:
        """documents: about how many will be added."""
        wanted = max(8, min(documents * BITS_PER_DOCUMENT, MOST_BITS))
        bits = 1 << (wanted - 1).bit_length()  # a power of two, so that a mask finds a place
        self._bits, self._mask = bytearray(bits // 8), bits - 1

    def __contains__(self, document: str) -> bool:
        return all(self._bits[place >> 3] >> (place & 7) & 1 for place in self._places(document))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BloomFilter) and self._bits == other._bits

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def size_bytes(self) -> int:
        return len(self._bits)

    def add(self, document: str) -> None:
        for place in self._places(document):
            self._bits[place >> 3] |= 1 << (place & 7)

    def to_text(self) -> str:
        """Return the filter as text, to send to another process."""
        return b64encode(self._bits).decode()

    @classmethod
    def from_text(cls, text: str) -> BloomFilter:
        """Read what `to_text` returned. Raises ValueError for any other text."""
        bits = b64decode(text, validate=True)
        if not bits or len(bits) & (len(bits) - 1):
            raise ValueError(f"a Bloom filter has a power of two of bytes, not {len(bits)}")
        bloom_filter = cls(0)
        bloom_filter._bits, bloom_filter._mask = bytearray(bits), len(bits) * 8 - 1
        return bloom_filter

    def _places(self, document: str) -> tuple[int, int, int, int]:
        name = document.encode(errors="surrogatepass")
        # This runs for each document of a tree between two steps of the scheduler, so it is unrolled.
        one = int.from_bytes(blake2b(name, digest_size=16).digest(), "big")
        mask = self._mask
        return one & mask, one >> 32 & mask, one >> 64 & mask, one >> 96 & mask
