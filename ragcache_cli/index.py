"""A Faiss index with its passages, kept in a folder. Only changed sources are read again.

manifest.json    what the index was made from; the three files are written together or not at all
passages.jsonl   one passage a line, in the order of the vectors
vectors.faiss    the IVF index
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragcache_cli.corpus_sources import Source, Unreadable
from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import EmptyCorpus
from ragcache_cli.extras import needed
from ragcache_cli.folders import OTHER_HOME, naming, replace_folder
from ragcache_cli.passages import PASSAGE_TOKENS, Passage, cut
from ragcache_cli.terminal import Done

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

FORMAT = 1
MANIFEST, PASSAGES, VECTORS = "manifest.json", "passages.jsonl", "vectors.faiss"

VECTORS_PER_LIST = 16
"""The fewest vectors per list, on average: with fewer vectors, an index gets fewer lists."""
PROBED_SHARE = 2
"""One in this many lists is searched, but at least PROBED_LEAST: recall matters most."""
PROBED_LEAST = 8
SLICE_S = 0.002
"""The least time of searching between two stages, in seconds."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The manifest's entry for one source.

    passages: how many passages of the source the index has; they stand together, in the manifest's
      order.
    skipped: why the source has none, if it could not be read.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    sha256: str
    passages: int
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index was made from. An update reuses parts only if all but the sources agree."""

    embedding: str
    sources: tuple[SourceRecord, ...]
    passage_tokens: int = PASSAGE_TOKENS
    format: int = FORMAT

    def agrees_with(self, other: Manifest) -> bool:
        mine, theirs = replace(self, sources=()), replace(other, sources=())
        return mine == theirs


@dataclass(frozen=True, slots=True)
class PassageIndex:
    """Passages and an index of their vectors: row i of the index is passage i.

    faiss_index: an IVF index of vectors of length 1, with squared distances.
    """

    passages: tuple[Passage, ...]
    faiss_index: Any
    manifest: Manifest

    @property
    def skipped(self) -> dict[str, str]:
        """The sources without a passage, with the reason."""
        return {source.name: source.skipped for source in self.manifest.sources if source.skipped}

    def nearest(self, vector: Vectors, k: int) -> list[Passage]:
        """Return at most k passages, nearest first. vector: shape (dimension,), length 1."""
        _, rows = self.faiss_index.search(vector[None, :], k)
        return [self.passages[row] for row in rows[0] if row >= 0]

    def vector(self, row: int) -> Vectors:
        """Return the vector of the passage of this row: float32, shape (dimension,)."""
        self.faiss_index.make_direct_map()
        vector: Vectors = self.faiss_index.reconstruct(row)
        return vector

    def vectors(self) -> Vectors:
        """Return all vectors: float32, shape (passages, dimension), row i of passage i."""
        return _all_vectors(self.faiss_index)

    def empty_copy(self) -> Any:
        """Return an empty index with the training and settings of this one."""
        import faiss

        empty = faiss.clone_index(self.faiss_index)
        empty.reset()
        return empty

    def in_stages(self, vector: Vectors, k: int) -> Iterator[tuple[list[Passage], bool]]:
        """Search in stages. Yields the nearest passages so far, and whether they are final.

        The final ones, which come last, are those that `nearest` returns.
        """
        from ragcache_engine.search import stages

        for stage in stages(self.faiss_index, vector, k, slice_s=SLICE_S):
            yield [self.passages[row] for row in stage.ids if row >= 0], stage.final


@dataclass(frozen=True, slots=True)
class Updated:
    """An index that was brought up to date. embedded: how many passages were embedded for it."""

    index: PassageIndex
    embedded: int


def update_index(
    folder: Path,
    sources: Sequence[Source],
    embedder: Embedder,
    done: Done | None = None,
    passage_tokens: int = PASSAGE_TOKENS,
) -> Updated:
    """Bring the index in the folder up to date with these sources, and save it there.

    Only new and changed sources are read and embedded; passages of sources that are gone are dropped.
    done: called with the number of embedded passages, and of all passages.
    passage_tokens: the most tokens of a passage. An index of other passages is made anew.
    Raises EmptyCorpus if no source gives a passage, MissingExtra, and CannotWrite; after an error the
    folder is unchanged.
    """
    started_ns = time.time_ns()
    old = load_index(folder)
    wanted = Manifest(embedder.name, (), passage_tokens)
    if old is not None and not old.manifest.agrees_with(wanted):
        old = None
    if old is not None and _is_current(old.manifest, sources):
        return Updated(old, 0)
    older = _OlderIndex(old)
    records: list[SourceRecord] = []
    passages: list[Passage] = []
    for source in sources:
        record, found = older.unchanged(source) or _read(source, embedder, passage_tokens)
        records.append(replace(record, mtime_ns=_mtime_to_trust(record.mtime_ns, started_ns)))
        passages.extend(found)
    if not passages:
        raise EmptyCorpus(_nothing_read(records))
    vectors, embedded = older.vectors(passages, embedder, done)
    index = PassageIndex(
        tuple(passages), build_ivf_index(vectors), replace(wanted, sources=tuple(records))
    )
    save_index(folder, index)
    return Updated(index, embedded)


def build_ivf_index(vectors: Vectors) -> Any:
    """Train an IVF index of about sqrt(n) lists, of which many are searched. vectors: shape (n, size)."""
    with needed("searching passages"):
        import faiss
    count, dimension = vectors.shape
    lists = max(1, min(math.isqrt(count), count // VECTORS_PER_LIST))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dimension), dimension, lists)
    index.cp.min_points_per_centroid = 1  # otherwise Faiss warns of few vectors
    index.train(vectors)
    index.add(vectors)
    index.nprobe = min(lists, max(PROBED_LEAST, lists // PROBED_SHARE))
    return index


def save_index(folder: Path, index: PassageIndex) -> None:
    """Write the whole folder, or leave it unchanged and raise CannotWrite."""
    import faiss

    with naming(folder, f"make room there, or {OTHER_HOME}"), replace_folder(folder) as written:
        # Faiss itself would not notice that the end of a file found no room.
        (written / VECTORS).write_bytes(faiss.serialize_index(index.faiss_index))
        lines = (json.dumps(asdict(passage), ensure_ascii=False) for passage in index.passages)
        (written / PASSAGES).write_text("\n".join(lines) + "\n", encoding="utf-8")
        manifest = json.dumps(asdict(index.manifest), indent=1, ensure_ascii=False)
        (written / MANIFEST).write_text(manifest, encoding="utf-8")


def load_index(folder: Path) -> PassageIndex | None:
    """Load the saved index. Returns None if there is none, or it is damaged or of another format."""
    with needed("searching passages"):
        import faiss
    try:
        manifest = _manifest(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        lines = (folder / PASSAGES).read_text(encoding="utf-8").split("\n")
        passages = tuple(Passage(**json.loads(line)) for line in lines if line)
        index = faiss.read_index(str(folder / VECTORS))
    except (OSError, ValueError, TypeError, KeyError, RuntimeError):  # Faiss raises the last
        return None
    promised = sum(source.passages for source in manifest.sources)
    if not len(passages) == index.ntotal == promised:
        return None
    return PassageIndex(passages, index, manifest)


def _manifest(fields: dict[str, Any]) -> Manifest:
    sources = tuple(SourceRecord(**source) for source in fields.pop("sources"))
    return Manifest(sources=sources, **fields)


def _is_current(manifest: Manifest, sources: Sequence[Source]) -> bool:
    recorded = [(record.name, record.size_bytes, record.mtime_ns) for record in manifest.sources]
    return recorded == [(source.name, source.size_bytes, source.mtime_ns) for source in sources]


def _mtime_to_trust(mtime_ns: int, started_ns: int) -> int:
    """Return -1 for a file that was changed within the last second: it may change again unnoticed."""
    just_written = started_ns - mtime_ns < 1_000_000_000
    return -1 if just_written else mtime_ns


def _read(
    source: Source, embedder: Embedder, passage_tokens: int
) -> tuple[SourceRecord, list[Passage]]:
    passages: list[Passage] = []
    numbers: Counter[str] = Counter()
    skipped = ""
    digest = source.digest()
    try:
        for section in source.read():
            name = f"{source.name}#{section.id}" if section.id else source.name
            found = cut(
                name,
                section.title,
                section.text,
                embedder.count_tokens,
                passage_tokens,
                first_number=numbers[name],  # sections may share a name, passages may not
            )
            numbers[name] += len(found)
            passages += found
    except Unreadable as error:
        passages, skipped = [], str(error)
    record = SourceRecord(
        source.name, source.size_bytes, source.mtime_ns, digest, len(passages), skipped
    )
    return record, passages


def _nothing_read(records: Sequence[SourceRecord]) -> str:
    reasons = "; ".join(f"{record.name}: {record.skipped or 'no text in it'}" for record in records)
    return f"no file of the corpus has text that could be read ({reasons})"


class _OlderIndex:
    """The reusable parts of an older index; none without an older index."""

    def __init__(self, old: PassageIndex | None) -> None:
        self._old = old
        self._rows: dict[Passage, int] = {}
        self._by_name: dict[str, tuple[SourceRecord, range]] = {}
        if old is None:
            return
        self._rows = {passage: row for row, passage in enumerate(old.passages)}
        at = 0
        for record in old.manifest.sources:
            self._by_name[record.name] = (record, range(at, at + record.passages))
            at += record.passages

    def unchanged(self, source: Source) -> tuple[SourceRecord, list[Passage]] | None:
        """Return the source's record and passages if its content has not changed, else None."""
        record, rows = self._by_name.get(source.name, (None, range(0)))
        if self._old is None or record is None or record.size_bytes != source.size_bytes:
            return None
        if record.mtime_ns != source.mtime_ns:
            if record.sha256 != source.digest():
                return None
            record = replace(record, mtime_ns=source.mtime_ns)
        return record, [self._old.passages[row] for row in rows]

    def vectors(
        self, passages: Sequence[Passage], embedder: Embedder, done: Done | None
    ) -> tuple[Vectors, int]:
        """Return a vector for each passage, and how many passages were embedded.

        Passages that have not changed are not embedded again, not even those of a changed file.
        """
        import numpy as np

        new = [row for row, passage in enumerate(passages) if passage not in self._rows]
        embedded = embedder.embed([passages[row].shown for row in new], done) if new else None
        if self._old is None:
            assert embedded is not None
            return embedded, len(new)
        stored = _all_vectors(self._old.faiss_index)
        vectors = np.empty((len(passages), stored.shape[1]), dtype=np.float32)
        for row, passage in enumerate(passages):
            if (old_row := self._rows.get(passage)) is not None:
                vectors[row] = stored[old_row]
        if embedded is not None:
            vectors[new] = embedded
        return vectors, len(new)


def _all_vectors(index: Any) -> Vectors:
    index.make_direct_map()
    vectors: Vectors = index.reconstruct_n(0, index.ntotal)
    return vectors
