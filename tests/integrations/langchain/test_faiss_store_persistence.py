import asyncio
import json
import os
import subprocess
import sys
from datetime import date
from hashlib import sha256
from pathlib import Path

import faiss
import numpy as np
import pytest

from ragcache_engine import BadRequest, IndexOutOfStep
from ragcache_integrations.langchain import (
    FaissVectorStore,
    HNSWIndex,
    IVFIndex,
    NotStorable,
    SaveDamaged,
    SaveForeign,
    SaveNotFound,
    UntrustedPickle,
)
from ragcache_integrations.langchain.faiss_store.persistence import MANIFEST

QUESTION = "Why is the sky blue?"


@pytest.fixture
def filled(corpus, embeddings):
    def make(index="flat", metric=None):
        metadatas = [{"topic": name} for name in corpus]
        return FaissVectorStore.from_texts(
            list(corpus.values()),
            embeddings,
            metadatas,
            ids=list(corpus),
            index=index,
            metric=metric,
        )

    return make


def load(folder, embeddings):
    return FaissVectorStore.load_local(folder, embeddings)


def contents(store):
    """Return everything that searches can find in a store."""
    return sorted(
        (document.id, document.page_content, json.dumps(document.metadata), round(score, 5))
        for document, score in store.similarity_search_with_score(QUESTION, k=1_000)
    )


@pytest.mark.parametrize(
    ("index", "metric"),
    [
        ("flat", "cosine"),
        ("flat", "l2"),
        ("ivf", "cosine"),
        (IVFIndex(nlist=2, nprobe=2, train_from=4), "inner_product"),
        (HNSWIndex(m=8, ef_search=32), "cosine"),
        (faiss.index_factory(64, "HNSW8_SQfp16"), None),
    ],
)
def test_what_is_saved_comes_back_and_goes_on_working(filled, embeddings, tmp_path, index, metric):
    store = filled(index, metric)
    store.delete(["glass"])
    store.save_local(tmp_path / "deep" / "folder")
    back = load(tmp_path / "deep" / "folder", embeddings)
    assert contents(back) == contents(store)
    assert back.metric == store.metric
    assert isinstance(back.index, type(store.index))
    for each in (store, back):
        each.add_texts(["Snow is white."], ids=["snow"])
        each.add_texts(["The sky is black at night."], [{"topic": "night"}], ids=["sky"])
        each.delete(["bees", "tides", "steel"])
        assert each.document_count == 3
    assert contents(back) == contents(store)


def test_an_empty_store_comes_back_empty(embeddings, tmp_path):
    FaissVectorStore(embeddings, index="hnsw", metric="l2").save_local(tmp_path)
    back = load(tmp_path, embeddings)
    assert back.document_count == 0
    back.add_texts(["Snow."])
    assert isinstance(back.index, faiss.IndexHNSWFlat)
    assert back.metric == "l2"


def test_a_save_can_be_made_and_read_off_the_event_loop(filled, embeddings, tmp_path):
    store = filled()

    async def there_and_back():
        await store.asave_local(tmp_path)
        return await FaissVectorStore.aload_local(tmp_path, embeddings)

    assert contents(asyncio.run(there_and_back())) == contents(store)


def test_the_relevance_function_is_given_anew(filled, embeddings, tmp_path):
    filled().save_local(tmp_path)
    back = FaissVectorStore.load_local(tmp_path, embeddings, relevance_score_fn=lambda score: 0.5)
    assert back.similarity_search_with_relevance_scores(QUESTION, k=1)[0][1] == 0.5


METADATA = {
    "text": "ünïcode \u2028 line\nbreak \x00 \ud800 half a pair",
    "numbers": [1, -2.5, 1e300, 2**70],
    "none": None,
    "flags": {"yes": True, "no": [False, {}]},
    "": "",
}


def test_metadata_and_text_come_back_exactly(embeddings, tmp_path):
    text = METADATA["text"] + "\r\n"
    store = FaissVectorStore.from_embeddings(
        [(text, [1.0, 2.0])], embeddings, [METADATA], ids=["\u2028id\n"]
    )
    store.save_local(tmp_path)
    (document,) = load(tmp_path, embeddings).get_by_ids(["\u2028id\n"])
    assert document.page_content == text
    assert document.metadata == METADATA
    assert document.metadata["flags"]["yes"] is True


@pytest.mark.parametrize(
    "value", [date(2024, 1, 1), {1: "a"}, (1, 2), float("nan"), {"deep": [{1, 2}]}, b"bytes"]
)
def test_metadata_that_json_would_change_is_refused_before_anything_is_written(
    filled, embeddings, tmp_path, value
):
    store = filled()
    store.save_local(tmp_path)
    before = files_of(tmp_path)
    store.add_texts(["Snow."], [{"fine": 1, "odd": value}], ids=["snow"])
    with pytest.raises(NotStorable, match=r"'snow' cannot be saved.*'odd'.*Nothing was written"):
        store.save_local(tmp_path)
    with pytest.raises(NotStorable):
        store.save_local(tmp_path / "new")
    assert files_of(tmp_path) == before


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_save_takes_the_place_of_the_one_before_and_leaves_no_files_of_it(
    filled, embeddings, tmp_path
):
    store = filled()
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(3):
        store.save_local(tmp_path)
        assert len(files_of(tmp_path)) == 4
    assert (tmp_path / "notes.txt").read_text() == "mine"


STEPS = ["write_index", "fsync", "replace"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fails_at", [1, 2, 3, 4, 5])
def test_a_save_that_fails_at_any_step_leaves_a_whole_save(
    filled, embeddings, tmp_path, monkeypatch, step, fails_at
):
    store = filled()
    store.save_local(tmp_path)
    old = contents(store)
    store.add_texts(["Snow is white."], ids=["snow"])
    new = contents(store)
    owner = faiss if step == "write_index" else os
    real, calls = getattr(owner, step), []

    def failing(*args):
        calls.append(args)
        if len(calls) == fails_at:
            raise OSError("no space left")
        return real(*args)

    monkeypatch.setattr(owner, step, failing)
    failed = False
    try:
        store.save_local(tmp_path)
    except OSError:
        failed = True
    monkeypatch.undo()
    assert failed == (len(calls) >= fails_at)
    # Only the last step, syncing the folder, comes after the step that makes the save valid.
    came_through = not failed or (step, fails_at) == ("fsync", 5)
    assert contents(load(tmp_path, embeddings)) == (new if came_through else old)
    assert len(files_of(tmp_path)) == 3


KILLED = """
import os, sys
from langchain_core.embeddings import DeterministicFakeEmbedding
from ragcache_integrations.langchain import FaissVectorStore

store = FaissVectorStore.from_texts(["new"], DeterministicFakeEmbedding(size=8), ids=["new"])
os.replace = lambda *paths: os.kill(os.getpid(), 9)
store.save_local(sys.argv[1])
"""


def test_a_process_killed_before_the_last_step_leaves_the_old_save(filled, embeddings, tmp_path):
    store = filled()
    store.save_local(tmp_path)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=60,
        check=False,
    )
    assert killed.returncode == -9
    assert len(files_of(tmp_path)) == 6
    assert contents(load(tmp_path, embeddings)) == contents(store)
    store.save_local(tmp_path)
    assert len(files_of(tmp_path)) == 3


def test_a_folder_that_is_not_there_or_holds_no_save_is_named(embeddings, tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(SaveNotFound, match=str(folder)) as caught:
            load(folder, embeddings)
        assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("which", ["index", "documents", "faiss_store"])
@pytest.mark.parametrize("damage", ["cut short", "changed", "gone"])
def test_a_damaged_save_is_named_and_not_half_read(filled, embeddings, tmp_path, which, damage):
    filled().save_local(tmp_path)
    (path,) = tmp_path.glob(f"{which}*")
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-7] if damage == "cut short" else flip_a_byte(whole))
    error = SaveNotFound if (which, damage) == ("faiss_store", "gone") else SaveDamaged
    with pytest.raises(error, match=str(tmp_path)):
        load(tmp_path, embeddings)


def flip_a_byte(data):
    return data[:50] + bytes([data[50] ^ 0xFF]) + data[51:]


@pytest.mark.parametrize(
    ("changes", "error", "advice"),
    [
        ({"format": "something else"}, SaveForeign, "another program"),
        ({"version": 2}, SaveForeign, "saved in format 2, this version reads 1"),
        ({"metric": "dot"}, SaveDamaged, "cannot be read"),
        ({"index": {"kind": "tree"}}, SaveDamaged, "cannot be read"),
        ({"index": {"kind": "ivf", "nprobe": 0}}, SaveDamaged, "cannot be read"),
        ({"documents": 7}, SaveDamaged, "do not belong together"),
        ({"files": {}}, SaveDamaged, "cannot be read"),
    ],
)
def test_a_manifest_that_says_something_else_is_named(
    filled, embeddings, tmp_path, changes, error, advice
):
    filled().save_local(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | changes))
    with pytest.raises(error, match=advice):
        load(tmp_path, embeddings)


def test_a_manifest_cannot_name_files_outside_its_folder(filled, embeddings, tmp_path):
    filled().save_local(tmp_path / "in")
    manifest = json.loads((tmp_path / "in" / MANIFEST).read_text())
    (tmp_path / "out").write_bytes(b"{}")
    manifest["files"]["documents"] |= {"name": "../out", "sha256": sha256(b"{}").hexdigest()}
    (tmp_path / "in" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(SaveDamaged, match="outside its folder"):
        load(tmp_path / "in", embeddings)


def test_a_file_of_another_program_is_not_overwritten(filled, tmp_path):
    (tmp_path / MANIFEST).write_text('{"mine": 1}')
    with pytest.raises(SaveForeign, match="choose another folder"):
        filled().save_local(tmp_path)
    assert files_of(tmp_path) == {MANIFEST: b'{"mine": 1}'}


def test_a_damaged_manifest_may_be_overwritten(filled, embeddings, tmp_path):
    (tmp_path / MANIFEST).write_bytes(b"\xff\x00")
    with pytest.raises(SaveDamaged):
        load(tmp_path, embeddings)
    filled().save_local(tmp_path)
    assert load(tmp_path, embeddings).document_count == 6


# Folders that langchain_community's FAISS store saved


@pytest.fixture
def old_folder(store, tmp_path):
    """A folder that langchain_community's FAISS saved, with the small corpus."""
    store.add_texts(["Gone again."], ids=["gone"])
    store.delete(["gone"])
    store.save_local(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("index", ["flat", "hnsw", IVFIndex(nlist=2, nprobe=2, train_from=2)])
def test_an_old_folder_is_read_when_its_owner_trusts_it(store, embeddings, old_folder, index):
    ours = FaissVectorStore.from_langchain_community(
        old_folder, embeddings, allow_dangerous_deserialization=True, index=index
    )
    theirs = store.similarity_search_with_score(QUESTION, k=6)
    found = ours.similarity_search_with_score(QUESTION, k=6)
    assert [document for document, _ in found] == [document for document, _ in theirs]
    assert [score for _, score in found] == pytest.approx([float(s) for _, s in theirs], abs=1e-5)
    assert ours.metric == "l2"
    ours.save_local(old_folder / "new")
    assert contents(load(old_folder / "new", embeddings)) == contents(ours)


def test_an_old_folder_takes_on_another_metric(embeddings, old_folder):
    ours = FaissVectorStore.from_langchain_community(
        old_folder, embeddings, allow_dangerous_deserialization=True, metric="cosine"
    )
    text = ours.get_by_ids(["sky"])[0].page_content
    assert ours.similarity_search_with_score(text, k=1)[0][1] == pytest.approx(1.0)


def test_an_old_folder_is_not_read_unless_it_is_said_to_be_trusted(embeddings, old_folder):
    with pytest.raises(UntrustedPickle, match="pass allow_dangerous_deserialization=True"):
        FaissVectorStore.from_langchain_community(old_folder, embeddings)
    with pytest.raises(SaveForeign, match="from_langchain_community"):
        load(old_folder, embeddings)


class Harm:
    def __reduce__(self):
        return (os.mkdir, ("harm-was-done",))


def test_even_a_trusted_pickle_runs_nothing(store, embeddings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store.docstore.search("sky").metadata["harm"] = Harm()
    store.save_local(str(tmp_path))
    with pytest.raises(UntrustedPickle, match=r"posix\.mkdir, which is neither"):
        FaissVectorStore.from_langchain_community(
            tmp_path, embeddings, allow_dangerous_deserialization=True
        )
    assert not (tmp_path / "harm-was-done").exists()


def test_plain_values_in_old_metadata_are_let_in(store, embeddings, tmp_path):
    metadata = {"day": date(2024, 1, 1), "size": np.float32(2.5), "path": Path("a/b"), "set": {1}}
    store.docstore.search("sky").metadata.update(metadata)
    store.save_local(str(tmp_path), index_name="mine")
    ours = FaissVectorStore.from_langchain_community(
        tmp_path, embeddings, index_name="mine", allow_dangerous_deserialization=True
    )
    assert ours.get_by_ids(["sky"])[0].metadata.items() >= metadata.items()


@pytest.mark.parametrize("damage", ["pickle cut", "index cut", "no index"])
def test_an_old_folder_that_is_damaged_is_named(embeddings, old_folder, damage):
    name, error = {
        "pickle cut": ("index.pkl", SaveDamaged),
        "index cut": ("index.faiss", SaveDamaged),
        "no index": ("index.faiss", SaveNotFound),
    }[damage]
    path = old_folder / name
    if damage == "no index":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(error, match=name):
        FaissVectorStore.from_langchain_community(
            old_folder, embeddings, allow_dangerous_deserialization=True
        )


def test_an_old_folder_out_of_step_is_named(store, embeddings, tmp_path):
    store.docstore.delete(["sky"])
    store.save_local(str(tmp_path))
    with pytest.raises(IndexOutOfStep, match=r"holds 6 vectors.*the documents of 5"):
        FaissVectorStore.from_langchain_community(
            tmp_path, embeddings, allow_dangerous_deserialization=True
        )


@pytest.mark.parametrize(
    "name", ["allow_dangerous_deserialization", "index_name", "distance_strategy"]
)
async def test_options_of_another_stores_loader_are_refused_with_what_to_do(
    filled, embeddings, tmp_path, name
):
    filled().save_local(tmp_path / "store")
    said = f"'{name}'; the options are relevance_score_fn.*no pickle.*from_langchain_community"
    with pytest.raises(BadRequest, match=said):
        FaissVectorStore.load_local(tmp_path / "store", embeddings, **{name: True})
    with pytest.raises(BadRequest, match=said):
        await FaissVectorStore.aload_local(tmp_path / "store", embeddings, **{name: True})


@pytest.mark.parametrize("make", ["from_texts", "from_documents"])
def test_an_unknown_option_of_a_new_store_names_the_options(embeddings, make):
    with pytest.raises(BadRequest, match=r"normalize_L2.*index, metric, relevance_score_fn"):
        getattr(FaissVectorStore, make)([], embeddings, normalize_L2=True)
