"""Retrievers around ours, which ask for more, ask again, merge, filter or rewrite what it found.

If a document is rewritten on the way, the prompt holds another text than the store. The answer must
come from that text, and the engine must never take that text for the original document.
"""

import asyncio
from operator import itemgetter

import pytest
from langchain_classic.chains import (
    create_history_aware_retriever,
    create_retrieval_chain,
)
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiQueryRetriever,
)
from langchain_classic.retrievers.document_compressors import (
    DocumentCompressorPipeline,
    EmbeddingsFilter,
    LLMChainExtractor,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_text_splitters import CharacterTextSplitter

from ragcache_integrations.langchain import FaissVectorStore

pytestmark = pytest.mark.vllm

ANSWERING = PromptTemplate.from_template(
    "<|im_start|>user\nAnswer from these texts.\n\n{context}\n\n{input}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def chain_of(side, retriever):
    return create_retrieval_chain(retriever, create_stuff_documents_chain(side.llm, ANSWERING))


def awaited(chain, asked, config):
    return asyncio.run(chain.ainvoke(asked, config))


def ids_of(documents):
    return [document.id for document in documents]


class KeywordRetriever(BaseRetriever):
    """The other retriever of an ensemble: finds the documents with most of the words."""

    texts: list[str]
    k: int = 3

    def _get_relevant_documents(self, query, *, run_manager):
        words = set(query.lower().split())
        ranked = sorted(self.texts, key=lambda text: -len(words & set(text.lower().split())))
        return [Document(text) for text in ranked[: self.k]]


class Shortened(BaseDocumentCompressor):
    """Keeps the first sentence of each document."""

    def compress_documents(self, documents, query, callbacks=None):
        return [Document(each.page_content.split(". ")[0] + ".", id=each.id) for each in documents]


class Reworded(BaseDocumentCompressor):
    """Changes a word in the middle; length and id stay."""

    def compress_documents(self, documents, query, callbacks=None):
        return [
            Document(each.page_content.replace(" the ", " THE "), id=each.id) for each in documents
        ]


class Titled(BaseDocumentCompressor):
    """Writes where a document is from, before and after its text."""

    def compress_documents(self, documents, query, callbacks=None):
        return [
            Document(f"Source {each.id}:\n{each.page_content} (end of {each.id})", id=each.id)
            for each in documents
        ]


class Backwards(BaseDocumentCompressor):
    """Drops the nearest document and reverses the others."""

    def compress_documents(self, documents, query, callbacks=None):
        return list(documents)[:0:-1]


def compressed(compressor):
    def build(side):
        retriever = ContextualCompressionRetriever(
            base_compressor=compressor(side) if callable(compressor) else compressor,
            base_retriever=side.retriever,
        )
        return chain_of(side, retriever)

    return build


def history_aware(side):
    rephrasing = ChatPromptTemplate.from_messages(
        [
            MessagesPlaceholder("chat_history"),
            ("human", "{input}"),
            ("human", "Ask this again so that it is understood by itself."),
        ]
    )
    return chain_of(side, create_history_aware_retriever(side.llm, side.retriever, rephrasing))


@pytest.mark.parametrize("ask", [None, awaited], ids=["invoke", "ainvoke"])
def test_a_history_aware_retriever_rephrases_searches_and_answers_alike(swap, questions, ask):
    history = [HumanMessage(questions[0]), AIMessage("Because the air scatters blue light.")]
    asked = {"input": "And at sunset?", "chat_history": history}
    answer, cold, _ = swap.answers_alike(history_aware, asked, ask)
    rephrased, answered = cold.document_ids
    assert rephrased == []
    assert answered == ids_of(answer["context"])


def test_without_a_history_the_question_is_searched_for_as_it_is(swap, questions, found):
    asked = {"input": questions[0], "chat_history": []}
    _, cold, _ = swap.answers_alike(history_aware, asked)
    assert cold.document_ids == [found(questions[0])]


@pytest.mark.parametrize("ask", [None, awaited], ids=["invoke", "ainvoke"])
def test_a_multi_query_retriever_joins_what_its_queries_found(swap, questions, ask):
    def build(side):
        retriever = MultiQueryRetriever.from_llm(side.retriever, side.llm, include_original=True)
        return chain_of(side, retriever)

    answer, cold, _ = swap.answers_alike(build, {"input": questions[1]}, ask)
    assert cold.document_ids[-1] == ids_of(answer["context"])
    assert len(cold.infos) == 2


@pytest.mark.parametrize("ask", [None, awaited], ids=["invoke", "ainvoke"])
def test_an_ensemble_with_a_keyword_search_answers_alike(swap, questions, long_corpus, ask):
    def build(side):
        keywords = KeywordRetriever(texts=list(long_corpus.values()))
        return chain_of(side, EnsembleRetriever(retrievers=[side.retriever, keywords]))

    answer, cold, _ = swap.answers_alike(build, {"input": questions[2]}, ask)
    found = {text: name for name, text in long_corpus.items()}
    shown = [found[document.page_content] for document in answer["context"]]
    (recognised,) = cold.document_ids
    assert set(recognised) <= set(shown)
    assert len(recognised) >= 3


def test_an_ensemble_over_two_stores_recognises_the_documents_of_both(
    swap, questions, long_corpus, telling_words
):
    other = FaissVectorStore.from_texts(
        ["A cuckoo lays its eggs into the nests of other birds, which hatch them as their own."],
        telling_words,
        ids=["sky"],  # an id that the first store has, too
    )

    def build(side):
        retrievers = [side.over(other, k=1), side.retriever]
        return chain_of(side, EnsembleRetriever(retrievers=retrievers))

    answer, cold, _ = swap.answers_alike(build, {"input": questions[0]})
    assert cold.document_ids == [ids_of(answer["context"])]
    assert cold.document_ids[0].count("sky") == 2


@pytest.mark.parametrize("compressor", [Shortened(), Reworded()], ids=["shortened", "reworded"])
def test_an_altered_document_is_answered_from_and_not_mistaken_for_the_original(
    swap, questions, compressor
):
    plain = chain_of(swap.ours, swap.ours.retriever)
    before = plain.invoke({"input": questions[0]})
    answer, cold, warm = swap.answers_alike(compressed(compressor), {"input": questions[0]})
    assert cold.document_ids == warm.document_ids == [[]]
    assert all(d.page_content in cold.prompts[0] for d in answer["context"])
    assert not any(d.page_content in cold.prompts[0] for d in before["context"])
    # And the other way round: the original gets nothing that the changed text left in the cache.
    assert plain.invoke({"input": questions[0]})["answer"] == before["answer"]


def test_a_document_that_was_only_framed_is_still_recognised(swap, questions, found):
    _, cold, _ = swap.answers_alike(compressed(Titled()), {"input": questions[0]})
    assert cold.document_ids == [found(questions[0])]


def test_documents_that_were_dropped_or_turned_round_are_recognised_where_they_stand(
    swap, questions, found
):
    _, cold, _ = swap.answers_alike(compressed(Backwards()), {"input": questions[0]})
    assert cold.document_ids == [found(questions[0])[:0:-1]]


def test_documents_that_were_filtered_by_their_embedding_are_recognised(
    swap, questions, found, telling_words
):
    nearest_two = EmbeddingsFilter(embeddings=telling_words, k=2)
    answer, cold, _ = swap.answers_alike(compressed(nearest_two), {"input": questions[0]})
    assert cold.document_ids == [found(questions[0])[:2]]
    assert len(answer["context"]) == 2


def test_extracts_that_the_model_made_are_answered_from(swap, questions):
    def extractor(side):
        return LLMChainExtractor.from_llm(side.llm)

    answer, cold, _ = swap.answers_alike(compressed(extractor), {"input": questions[0]})
    *extracting, answering = cold.document_ids
    assert sorted(name for ids in extracting for name in ids) == sorted(
        swap.ours.retriever.invoke(questions[0])[n].id for n in range(3)
    )
    assert len(answer["context"]) <= 3
    assert answering == []


def test_parts_of_documents_are_no_documents(swap, questions, telling_words):
    splitter = CharacterTextSplitter(chunk_size=120, chunk_overlap=0, separator=". ")
    parts = DocumentCompressorPipeline(
        transformers=[splitter, EmbeddingsFilter(embeddings=telling_words, k=3)]
    )
    answer, cold, _ = swap.answers_alike(compressed(parts), {"input": questions[0]})
    assert cold.document_ids == [[]]
    assert len(answer["context"]) == 3


def test_parents_found_by_their_children_answer_alike(swap, questions, long_corpus, telling_words):
    """As ParentDocumentRetriever does: small pieces are searched, whole texts are read."""
    children = [
        Document(sentence, id=f"{name}-{n}", metadata={"parent": name})
        for name, text in long_corpus.items()
        for n, sentence in enumerate(text.split(". "))
    ]
    store = FaissVectorStore.from_documents(children, telling_words)

    def parents_of(found):
        names = dict.fromkeys(child.metadata["parent"] for child in found)
        return [Document(long_corpus[name], id=name) for name in names]

    def build(side):
        return chain_of(side, itemgetter("input") | side.over(store) | parents_of)

    answer, cold, _ = swap.answers_alike(build, {"input": questions[0]})
    (recognised,) = cold.document_ids
    parents = set(ids_of(answer["context"]))
    assert {name.split("-")[0] for name in recognised} == parents
    assert not parents & set(recognised)
