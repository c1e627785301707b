"""Reads a save of langchain_community's FAISS store: <name>.faiss, and <name>.pkl with the documents.

A pickle can make Python call any function of any package. So this module reads the pickle only if the
caller says that it is trusted, and even then allows only classes that hold plain values.
langchain_community itself need not be installed.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faiss
from langchain_core.documents import Document

from ragcache_engine import IndexOutOfStep
from ragcache_integrations.langchain.faiss_store.errors import (
    SaveDamaged,
    SaveNotFound,
    UntrustedPickle,
)

_LANGCHAIN_PACKAGES = {"langchain", "langchain_classic", "langchain_community", "langchain_core"}
_PLAIN_TYPES = {
    "builtins": {"set", "frozenset", "complex", "bytearray"},
    "collections": {"OrderedDict"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "numpy": {"dtype"},
    "numpy._core.multiarray": {"scalar"},
    "numpy.core.multiarray": {"scalar"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"},
    "uuid": {"SafeUUID", "UUID"},
}


def read_community_save(
    folder: Path, name: str, trusted: bool
) -> tuple[faiss.Index, list[Document]]:
    """Return the index, and the document of each of its rows.

    name: the name of the two files, without their endings.
    Raises UntrustedPickle unless trusted, or if the pickle asks for more than plain values;
    SaveNotFound, SaveDamaged, IndexOutOfStep.
    """
    index_file, pickle_file = folder / f"{name}.faiss", folder / f"{name}.pkl"
    for file in (index_file, pickle_file):
        if not file.is_file():
            raise SaveNotFound(
                f"{file} is not there; give the folder and index_name that langchain_community's "
                f"save_local() was given"
            )
    if not trusted:
        raise UntrustedPickle(
            f"{pickle_file} is a pickle, and reading one can run code that was put into it; if you "
            f"made this file yourself, or trust who did, pass allow_dangerous_deserialization=True"
        )
    documents = _read_documents(pickle_file)
    try:
        index = faiss.read_index(str(index_file))
    except RuntimeError as error:
        raise SaveDamaged(f"{index_file} is not a Faiss index ({error})") from error
    if sorted(documents) != list(range(index.ntotal)):
        raise IndexOutOfStep(
            f"{index_file} holds {index.ntotal} vectors, {pickle_file} the documents of "
            f"{len(documents)}; use two files of one save"
        )
    return index, [documents[row] for row in range(index.ntotal)]


def _read_documents(file: Path) -> dict[int, Document]:
    """Return the documents by their rows."""
    try:
        with file.open("rb") as opened:
            docstore, ids = _PlainUnpickler(opened).load()
        pickled: Mapping[str, _PickledState] = docstore.state["_dict"]
        return {
            int(row): pickled[name].document(name) for row, name in ids.items() if name in pickled
        }
    except UntrustedPickle:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise SaveDamaged(f"{file} does not hold a docstore and its ids ({error!r})") from error


class _PickledState:
    """Stands in for LangChain's Document and InMemoryDocstore: keeps their state, runs no code."""

    state: dict[str, Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Every version of pydantic keeps a model's fields one level deeper.
        self.state = state.get("__dict__", state)

    def document(self, name: str) -> Document:
        state = self.state
        return Document(id=name, page_content=state["page_content"], metadata=state["metadata"])


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in _LANGCHAIN_PACKAGES and name in ("Document", "InMemoryDocstore"):
            return _PickledState
        if name in _PLAIN_TYPES.get(module, ()):
            return super().find_class(module, name)
        raise UntrustedPickle(
            f"the pickle asks for {module}.{name}, which is neither LangChain's nor a plain value; "
            f"load it with langchain_community, make the metadata plain, and save it again"
        )
