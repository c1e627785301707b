"""The cache follows its documents: what changed or vanished is gone, what is new is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import (
    Document,
    EngineConfig,
    EngineDied,
    InvalidArgument,
    MemoryBackend,
    RAGCacheEngine,
    Synced,
    SyncRecord,
    UnknownTemplate,
    Warmed,
)
from ragcache_engine.prompt import as_render
from ragcache_engine.warming.sync import Preparing, sync_documents

TEMPLATE = "Use the reports.\n\n{context}\n\nQuestion: {question}"


def report(name: str, about: str = "the harvest", times: int = 9) -> Document:
    return Document(name, f"The report {name} is about {about} of the year. " * times)


def reports(**about: str) -> list[Document]:
    return [report(name, words) for name, words in about.items()]


@contextmanager
def engine_of(**settings: Any) -> Iterator[RAGCacheEngine]:
    config = EngineConfig(backend="memory", **settings)
    backend = MemoryBackend(
        device_blocks=400,
        host_blocks=settings.get("host_cache", 0) and 60,
        context_tokens=1024,
        recompute_ratio=config.recompute_ratio,
    )
    with RAGCacheEngine(config, backend=backend) as engine:
        yield engine


@pytest.fixture
def engine() -> Iterator[RAGCacheEngine]:
    with engine_of() as made:
        yield made


def sync(engine: RAGCacheEngine, documents: list[Document], **options: Any) -> Synced:
    return engine.sync(documents, template=TEMPLATE, **options)


def cached(engine: RAGCacheEngine, document: Document) -> int:
    """How many tokens of a document a prompt finds in the cache."""
    prompt = TEMPLATE.format(context=document.text, question="What is it about?")
    usage = engine.generate(prompt, [document]).usage
    return usage.cached.total


class TestWhatASyncDoes:
    def test_the_first_one_computes_everything(self, engine: RAGCacheEngine) -> None:
        synced = sync(engine, reports(a="salt", b="rain"))
        assert (synced.added, synced.changed, synced.removed, synced.same) == (
            ("a", "b"),
            (),
            (),
            0,
        )
        assert synced.warmed
        assert synced.warmed.sets == 2
        assert cached(engine, report("a", "salt"))

    def test_what_changed_is_forgotten_and_computed_anew(self, engine: RAGCacheEngine) -> None:
        sync(engine, reports(a="salt", b="rain"))
        synced = sync(engine, reports(a="sugar", b="rain"))
        assert (synced.added, synced.changed, synced.removed, synced.same) == ((), ("a",), (), 1)
        assert cached(engine, report("a", "sugar"))
        assert cached(engine, report("b", "rain"))
        assert cached(engine, report("a", "salt")) <= 16  # the text before the documents

    def test_what_vanished_is_forgotten(self, engine: RAGCacheEngine) -> None:
        sync(engine, reports(a="salt", b="rain"))
        assert sync(engine, reports(b="rain")).removed == ("a",)
        assert cached(engine, report("a", "salt")) <= 16

    def test_the_same_again_changes_nothing(self, engine: RAGCacheEngine) -> None:
        sync(engine, reports(a="salt"))
        assert sync(engine, reports(a="salt")) == Synced(same=1)

    def test_it_may_forget_only(self, engine: RAGCacheEngine) -> None:
        engine.sync(reports(a="salt"), prepare=False)
        cached(engine, report("a", "salt"))
        synced = engine.sync(reports(a="sugar"), prepare=False)
        assert synced == Synced(changed=("a",))
        assert not cached(engine, report("a", "salt"))

    def test_sets_with_records_of_their_own_leave_each_other_alone(
        self, engine: RAGCacheEngine
    ) -> None:
        first, second = SyncRecord(), SyncRecord()
        sync(engine, reports(a="salt"), record=first)
        assert sync(engine, reports(b="rain"), record=second).removed == ()
        assert cached(engine, report("a", "salt"))
        assert sync(engine, [], record=first).removed == ("a",)

    def test_with_reuse_anywhere_new_documents_can_be_borrowed(self) -> None:
        with engine_of(reuse="anywhere", recompute_ratio=0.1, donors="alone") as engine:
            sync(engine, reports(a="salt", b="rain", c="wind"))
            some = reports(b="rain", c="wind", a="salt")
            prompt = TEMPLATE.format(context="\n\n".join(one.text for one in some), question="?")
            assert engine.generate(prompt, some).usage.borrowed.total

    def test_an_overlong_document_is_named_and_counts_as_seen(self, engine: RAGCacheEngine) -> None:
        synced = sync(engine, [report("a"), report("long", times=200)])
        assert synced.warmed
        assert [one.documents for one in synced.warmed.left_out] == [("long",)]
        assert sync(engine, [report("a"), report("long", times=200)]).same == 2


class TestWhatIsKept:
    def test_a_changed_document_is_kept_as_before(self) -> None:
        with engine_of(host_cache="1GiB") as engine:
            sync(engine, reports(a="salt", b="rain"))
            [before] = engine.keep(["a"], for_s=3600, template=TEMPLATE, corpus=reports(a="salt"))
            sync(engine, reports(a="sugar", b="rain"))
            [kept] = engine.kept()
            assert (kept.documents, kept.tier, kept.until) == (("a",), "host", before.until)
            assert kept.held_tokens == kept.tokens > 0

    def test_one_that_no_longer_fits_is_named(self) -> None:
        with engine_of(host_cache="1GiB", kept_share=0.2) as engine:
            sync(engine, [report("a", times=4)])
            engine.keep(["a"], template=TEMPLATE, corpus=[report("a", times=4)])
            synced = sync(engine, [report("a", times=40)])
            assert [one.documents for one in synced.kept_no_longer] == [("a",)]
            assert engine.kept() == ()

    def test_what_another_tenant_keeps_is_named_and_never_computed_for_it(self) -> None:
        with engine_of(host_cache="1GiB") as engine:
            sync(engine, reports(a="salt"), tenant="one")
            engine.keep(["a"], template=TEMPLATE, corpus=reports(a="rain"), tenant="two")
            synced = sync(engine, reports(a="sugar"), tenant="one")
            assert [one.documents for one in synced.kept_no_longer] == [("a",)]
            assert engine.kept() == ()
            prompt = TEMPLATE.format(context=report("a", "sugar").text, question="What?")
            answer = engine.generate(prompt, reports(a="sugar"), tenant="two")
            assert answer.usage.cached.total == 0

    @pytest.mark.parametrize("is_file", [False, True])
    def test_what_was_kept_is_kept_again_by_the_sync_after_one_that_failed(
        self, is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def record() -> dict[str, Any]:
            return {"record": SyncRecord(tmp_path / "record.json")} if is_file else {}

        with engine_of(host_cache="1GiB") as engine:
            sync(engine, reports(a="salt"), **record())
            engine.keep(["a"], template=TEMPLATE, corpus=reports(a="salt"))
            with monkeypatch.context() as patched:
                patched.setattr(RAGCacheEngine, "warm", lambda *_, **__: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    sync(engine, reports(a="sugar"), **record())
            assert engine.kept() == ()
            sync(engine, reports(a="sugar"), **record())
            [kept] = engine.kept()
            assert kept.documents == ("a",)
            assert cached(engine, report("a", "sugar"))

    def test_a_set_of_which_one_vanished_is_named(self) -> None:
        with engine_of(host_cache="1GiB") as engine:
            both = reports(a="salt", b="rain")
            sync(engine, both)
            engine.keep([["a", "b"]], template=TEMPLATE, corpus=both)
            synced = sync(engine, reports(a="salt"))
            assert [one.documents for one in synced.kept_no_longer] == [("a", "b")]

    def test_one_that_vanished_is_kept_no_longer(self) -> None:
        with engine_of(host_cache="1GiB") as engine:
            sync(engine, reports(a="salt"))
            engine.keep(["a"], template=TEMPLATE, corpus=reports(a="salt"))
            sync(engine, reports(b="rain"))
            assert engine.kept() == ()


class TestTheRecord:
    def test_a_file_tells_the_next_process(self, tmp_path: Path) -> None:
        path = tmp_path / "record.json"
        with engine_of() as engine:
            sync(engine, reports(a="salt", b="rain"), record=SyncRecord(path))
        assert set(json.loads(path.read_text())["documents"]) == {"a", "b"}
        assert "salt" not in path.read_text()
        with engine_of() as engine:
            synced = sync(engine, reports(a="sugar"), record=SyncRecord(path))
            assert (synced.changed, synced.removed) == (("a",), ("b",))
        assert [one.name for one in tmp_path.iterdir()] == ["record.json"]

    @pytest.mark.parametrize("said", ["", "[]", '{"a": 1}', "\xff", "[" * 100_000])
    def test_what_is_no_record_is_refused_and_stays(self, tmp_path: Path, said: str) -> None:
        path = tmp_path / "record.json"
        path.write_text(said, encoding="latin-1")
        with engine_of() as engine, pytest.raises(InvalidArgument, match=r"record\.json"):
            sync(engine, reports(a="salt"), record=SyncRecord(path))
        assert path.read_text(encoding="latin-1") == said

    def test_a_file_that_cannot_be_written_stops_it_before_any_work(
        self, engine: RAGCacheEngine, tmp_path: Path
    ) -> None:
        sync(engine, reports(a="salt"))
        with pytest.raises(InvalidArgument, match="cannot be written"):
            sync(engine, reports(b="rain"), record=SyncRecord(tmp_path / "none" / "record.json"))
        assert cached(engine, report("a", "salt"))


class TestTheEnginesOwnRecord:
    def test_each_tenant_has_its_own(self, engine: RAGCacheEngine) -> None:
        sync(engine, reports(a="salt"), tenant="one")
        second = sync(engine, reports(a="salt", b="rain"), tenant="two")
        assert (second.added, second.removed) == (("a", "b"), ())
        assert sync(engine, reports(a="salt"), tenant="one").same == 1


def test_one_that_is_too_long_alone_is_named_and_counts_as_seen(engine: RAGCacheEngine) -> None:
    synced = sync(engine, [report("long", times=200)])
    assert synced.warmed
    assert [one.documents for one in synced.warmed.left_out] == [("long",)]
    assert sync(engine, [report("long", times=200)]).same == 1


class TestWhatIsRefused:
    def test_two_texts_under_one_id(self, engine: RAGCacheEngine) -> None:
        sync(engine, reports(a="salt"))
        with pytest.raises(InvalidArgument, match="the id 'b' and different texts"):
            sync(engine, [report("b", "rain"), report("b", "wind")])
        assert cached(engine, report("a", "salt"))

    @pytest.mark.parametrize("documents", ["a", [1], {"a": "b"}, None])
    def test_what_is_no_document(self, engine: RAGCacheEngine, documents: Any) -> None:
        with pytest.raises(InvalidArgument, match="documents"):
            sync(engine, documents)

    def test_computing_without_knowing_how_prompts_begin(self, engine: RAGCacheEngine) -> None:
        engine.sync(reports(a="salt"), prepare=False)
        cached(engine, report("a", "salt"))
        with pytest.raises(UnknownTemplate):
            engine.sync(reports(a="sugar"))
        assert cached(engine, report("a", "salt"))  # nothing was forgotten before it was known


@given(
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.sampled_from(["salt", "rain"])),
            st.sampled_from([None, "forget", "warm"]),
        ),
        max_size=8,
    )
)
def test_whatever_failed_before_a_sync_that_ends_leaves_exactly_the_documents(
    steps: list[tuple[Mapping[str, str], str | None]],
) -> None:
    """A cache that holds (id, text) pairs: forgetting and computing may fail half way."""
    held: set[tuple[str, str]] = set()
    record = SyncRecord()
    fails: list[str | None] = [None]

    def forget(names: Any) -> None:
        for at, name in enumerate(names):
            if fails[0] == "forget" and at == 1:
                raise EngineDied("gone")
            held.difference_update([one for one in held if one[0] == name])
        if fails[0] == "forget":
            raise EngineDied("gone")

    def warm(sets: Any, **_: Any) -> Warmed:
        for (one,) in sets:
            held.add((one.id, one.text))
            if fails[0] == "warm":
                raise EngineDied("gone")
        return Warmed()

    preparing = Preparing(
        warm=warm,
        keep=lambda *_, **__: None,
        kept=tuple,
        arguments={},
        render=as_render(TEMPLATE),
        tenant=None,
        borrows=False,
    )
    for about, fails[0] in [*steps, ({"a": "salt"}, None)]:
        documents = reports(**about)
        try:
            sync_documents(documents, record, forget, preparing)
        except EngineDied:
            continue
        assert held == {(one.id, one.text) for one in documents}
