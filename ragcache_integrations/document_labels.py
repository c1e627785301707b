"""Labels for chunks whose ids a machine made: where their text is from."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from pathlib import PurePath
from typing import Any
from uuid import UUID

# Names that loaders and splitters of both frameworks use in metadata.
_SOURCES = ("file_name", "file_path", "source", "url")
_NAMING = (str, Number, PurePath)
_PLACES = {"page": ("page_label", "page"), "character": ("start_index",)}


def label_of(document_id: str | None, metadata: Mapping[str, Any]) -> str | None:
    """Return a chunk's source and place, such as "tides.pdf, page 3, character 1200".

    document_id: None if the chunk has none. Return None if the id is no UUID, so means something, or if
    the metadata names no source.
    """
    if document_id is not None and not _is_uuid(document_id):
        return None
    source = _first_text(metadata, _SOURCES)
    if source is None:
        return None
    places = {place: _first_text(metadata, names) for place, names in _PLACES.items()}
    return ", ".join([source, *(f"{place} {at}" for place, at in places.items() if at is not None)])


def _first_text(metadata: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    values = (metadata.get(name) for name in names)
    # Anything else, such as a list or an array, names no single place.
    texts = (str(value) for value in values if isinstance(value, _NAMING) and value != "")
    # The name of a file may be no UTF-8, and no label may.
    readable = (text.encode(errors="replace").decode() for text in texts)
    return next((text for text in readable if not _is_uuid(text)), None)


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
