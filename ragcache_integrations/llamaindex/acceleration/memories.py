"""Gives a copied chat engine a memory of its own, as long as that lies in this process."""

from __future__ import annotations

from copy import copy
from typing import Any

from llama_index.core.memory import BaseMemoryBlock, Memory, SimpleComposableMemory
from llama_index.core.memory.types import BaseMemory
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore


def own_memory(memory: BaseMemory) -> BaseMemory:
    """Return a memory with the same messages, which the original does not see grow.

    A memory in a database outside of this process is returned as it is: its session goes on there.
    """
    if isinstance(memory, SimpleComposableMemory):
        sources = memory.secondary_memory_sources
        update = {
            "primary_memory": own_memory(memory.primary_memory),
            "secondary_memory_sources": [own_memory(source) for source in sources],
        }
        return memory.model_copy(update=update)
    store: Any = getattr(memory, "chat_store", None)
    if isinstance(store, SimpleChatStore):
        return memory.model_copy(update={"chat_store": store.model_copy(deep=True)})
    if isinstance(memory, Memory) and _is_in_process(memory.sql_store):
        update = {
            "sql_store": _empty_store_like(memory.sql_store),
            "memory_blocks": [_own_block(block) for block in memory.memory_blocks],
        }
        twin = memory.model_copy(update=update)
        if messages := memory.get_all():
            twin.set(messages)
        return twin
    return memory


def _own_block(block: BaseMemoryBlock[Any]) -> BaseMemoryBlock[Any]:
    """Return a block with lists and dicts of its own; models and vector stores are shared."""
    held = {name: copy(one) for name, one in vars(block).items() if isinstance(one, (list, dict))}
    return block.model_copy(update=held)


def _is_in_process(store: Any) -> bool:
    return isinstance(store, SQLAlchemyChatStore) and ":memory:" in store.async_database_uri


def _empty_store_like(store: Any) -> SQLAlchemyChatStore:
    return SQLAlchemyChatStore(
        table_name=store.table_name, async_database_uri=store.async_database_uri
    )
