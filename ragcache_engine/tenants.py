"""Names of tenants: whose quota and whose key they share, and by what ids they are forgotten.

A tenant's name up to its first "::" is its owner. "shop::anna" and "shop::ben" are users of "shop":
none finds the tensors of another one, but they share the quota of "shop", its key on the disk, and are
forgotten with it.
"""

from __future__ import annotations

BELOW = "::"
"""Stands between an owner and its users.

vLLM's server takes no slash in a `cache_salt`, and one colon is in the names of many applications, as in
"user:42".
"""

_TENANT = "\0tenant\0"
"""How the id of a tenant begins. No document's id does."""


def owner_of(tenant: str) -> str:
    """Return the owner of a tenant: itself, if nothing stands before its first two colons."""
    return tenant.partition(BELOW)[0] or tenant


def forget_id(tenant: str) -> str:
    """Return what stands for a whole tenant among the ids of documents that are forgotten."""
    return f"{_TENANT}{tenant}"


def tenant_of(document_id: str) -> str | None:
    """Return the tenant that an id stands for; None for a document's."""
    return document_id.removeprefix(_TENANT) if document_id.startswith(_TENANT) else None


def forget_ids_of(tenant: str | None) -> tuple[str, ...]:
    """Return the ids with which what a tenant stored is forgotten.

    Its owner's, its own, and that of the user whose name stands before the next two.
    """
    if tenant is None:
        return ()
    user = BELOW.join(tenant.split(BELOW, 2)[:2])
    return tuple(map(forget_id, dict.fromkeys((owner_of(tenant), user, tenant))))
