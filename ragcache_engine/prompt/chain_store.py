"""Keep the templates of every tenant's chains: in bounded memory, and no tenant pushes out another's.

A tenant has room for MOST_CHAINS chains, and forgets its own least recently used one beyond that. If the
chains of all tenants together take more than MOST_CHARACTERS, the tenant that takes most forgets first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from ragcache_engine.prompt.chain_templates import ChainTemplates

MOST_CHAINS = 64
MOST_CHARACTERS = 16 << 20
CHAIN_CHARACTERS = 4096
"""What a chain counts besides the texts that it is learned from: about what its objects take."""


@dataclass(slots=True)
class _TenantChains:
    """One tenant's chains, the least recently used first, and how many characters they count."""

    chains: OrderedDict[Hashable, ChainTemplates] = field(default_factory=OrderedDict)
    characters: dict[Hashable, int] = field(default_factory=dict)
    all_characters: int = 0

    def count(self, chain: Hashable, characters: int) -> int:
        """Note what a chain counts now, 0 if it was forgotten; return by how much the sum has grown."""
        grown = characters - self.characters.pop(chain, 0)
        if characters:
            self.characters[chain] = characters
        self.all_characters += grown
        return grown

    def forget_oldest(self) -> int:
        """Forget the least recently used chain; return by how much the sum has grown: below 0."""
        return self.count(self.chains.popitem(last=False)[0], 0)


class ChainStore:
    """Keep the templates by tenant and chain. `find` may run beside any method; no others may."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str | None, _TenantChains] = OrderedDict()
        self._all_characters = 0

    def find(self, tenant: str | None, chain: Hashable) -> ChainTemplates | None:
        """Return what is known of the chain; None if nothing is."""
        known = self._tenants.get(tenant)
        return known.chains.get(chain) if known else None

    def use(self, tenant: str | None, chain: Hashable) -> ChainTemplates | None:
        """Return what `find` does, and make tenant and chain the most recently used ones."""
        templates = self.find(tenant, chain)
        if templates is not None:
            self._tenants.move_to_end(tenant)
            self._tenants[tenant].chains.move_to_end(chain)
        return templates

    def put(self, tenant: str | None, chain: Hashable, templates: ChainTemplates) -> None:
        """Keep what is now known of the chain as the most recently used; forget others to make room."""
        own = self._tenants.setdefault(tenant, _TenantChains())
        own.chains[chain] = templates
        self.use(tenant, chain)
        characters = CHAIN_CHARACTERS + templates.count_characters()
        self._all_characters += own.count(chain, characters)
        if len(own.chains) > MOST_CHAINS:
            self._all_characters += own.forget_oldest()
        while self._all_characters > MOST_CHARACTERS:
            self._forget_of_largest()

    def _forget_of_largest(self) -> None:
        # Of tenants that take as much, max() returns the first: the least recently used one.
        tenant, largest = max(self._tenants.items(), key=lambda item: item[1].all_characters)
        self._all_characters += largest.forget_oldest()
        if not largest.chains:
            del self._tenants[tenant]
