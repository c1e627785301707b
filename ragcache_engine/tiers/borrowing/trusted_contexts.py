"""Remembers behind what documents are stored, for prompts whose senders may not say it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from sys import getsizeof

from ragcache_engine.latest_items import LatestItems
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.wire import RequestMessage

MOST_BYTES = 64 << 20
"""How much memory the contexts may take; the longest unused go."""

ENTRY_BYTES = 600
"""What an entry takes beside the names and tokens in it."""

_Key = tuple[str | None, str]  # tenant, document


class TrustedContexts:
    """The contexts that the engine itself told last, by tenant and document.

    A context becomes a prompt of its own, so only the engine may tell one. It does when it prepares
    documents; the prompts of other clients then borrow what was prepared.
    """

    def __init__(self) -> None:
        self._known: LatestItems[_Key, Context] = LatestItems(MOST_BYTES, _entry_bytes)

    def complete(self, message: RequestMessage, tenant: str | None) -> RequestMessage:
        """Return the message of a tenant's request with contexts that may be trusted.

        A message that the engine itself wrote has them, and they are remembered. Any other gets those
        that are known of its documents.
        """
        if message.is_trusted:
            for name, context in message.contexts.items():
                ids = name, context.document, *forget_ids_of(tenant)
                if not set(message.withdrawn).isdisjoint(ids):
                    continue
                self._known[tenant, name] = context._replace(
                    token_ids=array("I", context.token_ids)
                )
                self._known.touch((tenant, name))
            return message
        if not (message.segments or message.contexts):
            return message
        contexts = {}
        for _, document in message.segments:
            if document is not None and (known := self._known.get((tenant, document))) is not None:
                contexts[document] = known._replace(token_ids=tuple(known.token_ids))
        return replace(message, contexts=contexts)

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember neither these documents nor that others are stored behind them; nor a tenant's."""
        names = set(document_ids)
        for key, context in list(self._known.items()):
            tenant, document = key
            if not names.isdisjoint((document, context.document, *forget_ids_of(tenant))):
                del self._known[key]


def _entry_bytes(key: _Key, context: Context) -> int:
    names = getsizeof(key[1]) + getsizeof(context.document)
    return ENTRY_BYTES + names + getsizeof(context.token_ids)
