"""Keeps a question set as files in a folder. Workers read them, so that none has to embed or index.

set.json       questions, documents, the document of each row of the index, the form of the prompt
index.faiss    the index
questions.npy  one vector for each question
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ragcache_cli.prompts import PromptForm

SET, INDEX, VECTORS = "set.json", "index.faiss", "questions.npy"


@dataclass(frozen=True, slots=True)
class StoredSet:
    """A question set as a worker reads it.

    index: a Faiss index. rows: for each row of the index, the id of its document.

    vectors: float32, shape (questions, dimension).
    """

    questions: list[str]
    documents: dict[str, str]
    rows: list[str]
    form: PromptForm
    index: Any
    vectors: Any

    def write(self, folder: Path) -> None:
        """Write the three files. The folder is made if need be."""
        import faiss
        import numpy as np

        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "questions": self.questions,
            "documents": self.documents,
            "rows": self.rows,
            "form": asdict(self.form),
        }
        (folder / SET).write_text(json.dumps(content), encoding="utf-8")
        np.save(folder / VECTORS, self.vectors)
        faiss.write_index(self.index, str(folder / INDEX))

    @classmethod
    def read(cls, folder: Path) -> Self:
        import faiss
        import numpy as np

        content = json.loads((folder / SET).read_text(encoding="utf-8"))
        content["form"] = PromptForm(**content["form"])
        index = faiss.read_index(str(folder / INDEX))
        return cls(**content, index=index, vectors=np.load(folder / VECTORS))


def build_store(stored: StoredSet) -> Any:
    """Build LangChain's own FAISS store over the set.

    The store looks up the vectors of questions and documents instead of embedding them, because that
    would take every system the same time.
    """
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings

    known = dict(zip(stored.questions, stored.vectors, strict=True))
    rows = {stored.documents[name]: row for row, name in reversed([*enumerate(stored.rows)])}
    if hasattr(stored.index, "make_direct_map"):  # an IVF index reads its vectors only with one
        stored.index.make_direct_map()

    class Known(Embeddings):
        def embed_query(self, text: str) -> list[float]:
            vector = known[text] if text in known else stored.index.reconstruct(rows[text])
            return list(map(float, vector))

        async def aembed_query(self, text: str) -> list[float]:
            return self.embed_query(text)

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

    names = {row: f"row-{row}" for row in range(len(stored.rows))}
    documents = {
        names[row]: Document(stored.documents[name], id=name)
        for row, name in enumerate(stored.rows)
    }
    return FAISS(Known(), stored.index, InMemoryDocstore(documents), names)
