"""Names files and marks documents, so that no file tells what it holds."""

from __future__ import annotations

import array
import json
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple

from ragcache_engine.tenants import forget_id, forget_ids_of, owner_of

BLOCK_DIGITS, MARK_DIGITS = 40, 16
"""How many digits of a file's name stand for its block, and how many after them for its owner."""

ENCRYPTED = "e"
"""The last digit of the names of encrypted files, which have one more than others."""

NOBODY = "0" * MARK_DIGITS
"""Stands for requests without a tenant in the names of encrypted files."""


class Naming(NamedTuple):
    """Names of files and marks of documents.

    secret: goes into every digest, so that nobody else can make the name of a text or of a document and
      look for it; 64 bytes at most. Empty: names are plain digests.
    """

    secret: bytes = b""

    def mark(self, document_id: str) -> str:
        """Return the mark of a document: a digest that stands for its id, which stays off the disk."""
        size = MARK_DIGITS // 2
        return blake2b(document_id.encode(), digest_size=size, key=self.secret).hexdigest()

    def owner(self, tenant: str | None) -> str:
        """Return what stands for a tenant's owner in the names of files: the mark it is forgotten by.

        Nothing for requests without a tenant, unless their files are encrypted.
        """
        if tenant is None:
            return NOBODY if self.secret else ""
        return self.mark(forget_id(owner_of(tenant)))

    def tenant(self, tenant: str | None) -> list[str]:
        """Return the marks by which a tenant is forgotten: its owner's, and its own."""
        return [self.mark(one) for one in forget_ids_of(tenant)]

    def kept(self, document_ids: Sequence[str], tenant: str | None) -> str:
        """Return what stands for a tenant's set of documents among what is kept."""
        named = json.dumps([tenant, *document_ids]).encode()
        return blake2b(named, digest_size=8, key=self.secret, person=b"kept").hexdigest()

    def files(
        self, token_ids: Sequence[int], tenant: str | None, *, blocks: int, block_tokens: int
    ) -> list[str]:
        """Name the files of a prompt's leading blocks.

        A name identifies the tenant, and all tokens up to the block's end. It is the same in every
        process, while vLLM's own hashes begin with a random number that each process draws.
        """
        # A digest of its own for the tenant: no name can be chosen so that it looks like another
        # tenant's name and some tokens.
        whose = "" if tenant is None else sha256(tenant.encode()).hexdigest()
        reached = sha256(self.secret + f"{block_tokens}\0{whose}\0".encode())
        end, names = self.owner(tenant) + (ENCRYPTED if self.secret else ""), []
        for block in range(blocks):
            tokens = token_ids[block * block_tokens : (block + 1) * block_tokens]
            reached.update(array.array("q", tokens).tobytes())
            names.append(reached.hexdigest()[:BLOCK_DIGITS] + end)
        return names


PLAIN = Naming()
"""How files are named that are not encrypted."""


def owner_in(name: str) -> str:
    """Return what stands for the owner in a file's name, as `Naming.owner` does."""
    return name[BLOCK_DIGITS : BLOCK_DIGITS + MARK_DIGITS]


def owner_with_quota(name: str) -> str | None:
    """Return what stands for the owner in a block's name; None for one without a tenant."""
    owner = owner_in(name)
    return owner if owner != NOBODY and owner else None


def is_encrypted(name: str) -> bool:
    """Return whether a file of this name is encrypted."""
    return len(name) > BLOCK_DIGITS + MARK_DIGITS
