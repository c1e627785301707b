"""Each block belongs to one node, and nodes begin where documents begin and where prompts part."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.knowledge import POLICIES, Node, Tier
from ragcache_engine.tiers.block_index import BlockIndex, Cut


def keys_of(blocks: str) -> list[bytes]:
    """A prompt of one letter a block: each key tells of all blocks up to its own."""
    keys, reached = [], b""
    for block in blocks:
        reached = blake2b(reached + block.encode(), digest_size=8).digest()
        keys.append(reached)
    return keys


class Book:
    """An index, and in each record what is kept of each block: the letter it was first seen with."""

    def __init__(self) -> None:
        self.splits: list[tuple[Node, Node]] = []
        self.index: BlockIndex[Any] = BlockIndex(POLICIES["lru"], 16)
        self.tree = self.index.tree
        self.tree.set_capacity(Tier.DEVICE, 100)

    def path(self, blocks: str, *cuts: Cut) -> list[Node]:
        nodes, splits = self.index.path(keys_of(blocks), cuts or [Cut(len(blocks))])
        self.splits += splits
        self.tree.pin(nodes)
        end, at = (cuts[-1].end if cuts else len(blocks)), 0
        for node in nodes:
            for place in range(node.blocks):
                assert at < end
                self.index.record(node).writable_files()[place] = blocks[at]
                at += 1
        return nodes

    def keys(self, node: Node) -> list[bytes]:
        return self.index.record(node).keys if node.parent else []

    def spelled(self, node: Node) -> str:
        return "".join(letter or "?" for letter in self.index.record(node).files)


def spell(book: Book, nodes: list[Node]) -> list[str]:
    return [book.spelled(node) for node in nodes]


def test_prompts_share_nodes_up_to_where_they_part():
    book = Book()
    assert spell(book, book.path("abcd")) == ["abcd"]
    assert spell(book, book.path("abxy")) == ["ab", "xy"]
    assert spell(book, book.path("abcd")) == ["ab", "cd"]
    assert spell(book, book.path("abc")) == ["ab", "c"]
    assert spell(book, book.path("abcde")) == ["ab", "c", "d", "e"]
    assert len(book.index) == len("abcdxye")


def test_the_same_block_behind_another_one_is_another_block():
    book = Book()
    book.path("ab")
    assert spell(book, book.path("bab")) == ["bab"]
    assert len(book.index) == 5


def test_a_node_begins_where_a_document_begins():
    book = Book()
    assert spell(book, book.path("abcd", Cut(1), Cut(3), Cut(4))) == ["a", "bc", "d"]
    assert spell(book, book.path("abcde")) == ["a", "bc", "d", "e"]


def test_what_lies_behind_the_last_cut_is_not_kept():
    book = Book()
    assert spell(book, book.path("abcd", Cut(1), Cut(3))) == ["a", "bc"]
    assert book.index.owner(keys_of("abcd")[3]) is None
    assert book.index.path(keys_of("abcd"), []) == ([], [])


def test_a_block_tells_its_node_and_its_place():
    book = Book()
    (node,) = book.path("abcd")
    assert book.index.owner(keys_of("abc")[2]) == (node, 2)
    upper, lower = book.path("abcd", Cut(1), Cut(4))
    assert lower is node
    assert book.index.owner(keys_of("abc")[2]) == (lower, 1)
    assert book.index.owner(keys_of("a")[0]) == (upper, 0)
    assert book.splits == [(upper, lower)]
    assert list(book.keys(upper)) + list(book.keys(lower)) == keys_of("abcd")


def test_a_document_is_found_in_every_context_and_after_its_node_was_cut():
    book = Book()
    book.path("abc", Cut(1), Cut(3, ("D",)))
    book.path("xbc", Cut(1), Cut(3, ("D",)))
    book.path("aby", Cut(1), Cut(3, ("D", "E")))
    found = sorted(book.spelled(node) for node in book.index.nodes_of("D"))
    assert found == ["b", "bc", "c", "y"]
    assert sorted(spell(book, list(book.index.nodes_of("E")))) == ["b", "y"]
    assert book.index.nodes_of("F") == ()


def test_a_document_is_elsewhere_if_a_node_of_no_given_path_has_it():
    book = Book()
    one = book.path("abc", Cut(1), Cut(3, ("D",)))
    assert not book.index.has_elsewhere("D", set(one))
    other = book.path("xbc", Cut(1), Cut(3, ("D",)))
    assert book.index.has_elsewhere("D", set(one))
    assert not book.index.has_elsewhere("D", {*one, *other})
    assert not book.index.has_elsewhere("F", set())


class Counted(str):
    """A name that counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_many_names_on_one_node_cost_as_much_as_they_are():
    book = Book()

    def names() -> tuple[str, ...]:
        return tuple(Counted(f"{number:x}") for number in range(2000))

    (node,) = book.path("ab", Cut(2, names()))
    Counted.compared = 0
    (again,) = book.path("ab", Cut(2, (*names(), "another")))
    assert again is node
    assert len(node.documents) == 2001
    assert Counted.compared < 20 * 2000


def test_a_prompt_that_tells_no_names_takes_none_away():
    book = Book()
    book.path("abc", Cut(3, ("D",)))
    book.path("abx")
    assert sorted(spell(book, list(book.index.nodes_of("D")))) == ["ab", "c"]


def test_a_forgotten_node_is_known_by_nothing():
    book = Book()
    nodes = book.path("abc", Cut(1), Cut(3, ("D",)))
    book.tree.unpin(nodes)
    assert len(book.index) == 0
    assert book.index.nodes_of("D") == ()
    with pytest.raises(KeyError):
        book.index.record(nodes[1])
    assert all(book.index.owner(key) is None for key in keys_of("abc"))


texts = st.text("ab", min_size=1, max_size=8)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[str, list[Cut]]:
    blocks = draw(texts)
    ends = sorted(draw(st.sets(st.integers(1, len(blocks)), min_size=1)))
    names = st.lists(st.sampled_from("DEF"), max_size=2).map(tuple)
    return blocks, [Cut(end, draw(names)) for end in ends]


@given(st.lists(prompts(), min_size=1, max_size=8), st.data())
@settings(max_examples=examples(100))
@pytest.mark.slow
def test_the_path_of_any_prompt_covers_its_kept_blocks_in_order(
    asked: list[tuple[str, list[Cut]]], data: st.DataObject
):
    book = Book()
    pinned: list[list[Node]] = []
    told: dict[str, set[bytes]] = {}
    for blocks, cuts in asked:
        keys = keys_of(blocks)
        nodes = book.path(blocks, *cuts)
        pinned.append(nodes)
        assert [key for node in nodes for key in book.keys(node)] == keys[: cuts[-1].end]
        ends = {node.end // 16 for node in nodes}
        assert ends >= {cut.end for cut in cuts}
        start = 0
        for cut in cuts:
            for name in cut.documents:
                told.setdefault(name, set()).update(keys[start : cut.end])
            start = cut.end
        if data.draw(st.booleans()) and len(pinned) > 1:
            # Some end, and what nobody else needs is forgotten; halves made since are not theirs.
            gone = pinned.pop(0)
            before = {key for node in gone for key in book.keys(node)}
            book.tree.unpin(gone)
            kept = {key for key in before if book.index.owner(key)}
            for known in told.values():
                known -= before - kept
    nodes = [node for node in book.tree.root.downwards() if node is not book.tree.root]
    owned = [key for node in nodes for key in book.keys(node)]
    assert len(owned) == len(set(owned)) == len(book.index)
    for node in nodes:
        assert len(book.keys(node)) == node.blocks > 0
        for at, key in enumerate(book.keys(node)):
            assert book.index.owner(key) == (node, at)
        assert node.parent is not None
        above = book.keys(node.parent)
        assert node.parent is book.tree.root or above
    for blocks, cuts in asked:
        # The letters were put in place block by block, before all the cuts that came later.
        for at, key in enumerate(keys_of(blocks)[: cuts[-1].end]):
            if found := book.index.owner(key):
                assert book.index.record(found[0]).files[found[1]] == blocks[at]
    for name, known in told.items():
        found_keys = {key for node in book.index.nodes_of(name) for key in book.keys(node)}
        assert found_keys >= {key for key in known if book.index.owner(key)}
