"""A chat model behind a retriever: its prompts are learned, foreseen and adopted like all others."""

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from waiting import eventually

from ragcache_integrations.langchain import ChatRAGCache, RAGCacheRetriever

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Use these texts:\n\n{context}"), ("human", "{question}")]
)


@pytest.fixture
def patient_chain(speculating):
    """A chain that waits with its prompt until `waits_for` speculations have started."""

    def chain(retriever, model):
        def join(documents):
            assert eventually(lambda: speculating.stats().speculation.started >= chain.waits_for)
            return "\n\n".join(document.page_content for document in documents)

        inputs = {"context": retriever | RunnableLambda(join), "question": RunnablePassthrough()}
        return inputs | PROMPT | model

    chain.waits_for = 0
    return chain


@pytest.fixture
def chat(speculating):
    return ChatRAGCache(engine=speculating, temperature=0, max_tokens=256)


def test_the_documents_are_recognised_in_the_conversation(store, speculating, patient_chain, chat):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=speculating, k=2)
    message = patient_chain(retriever, chat).invoke("Why is the sky blue?")
    found = retriever.invoke("Why is the sky blue?")
    assert message.response_metadata["document_ids"] == [document.id for document in found]


@pytest.mark.parametrize("way", ["invoke", "stream", "structured"])
def test_the_second_question_is_answered_before_it_is_asked(
    store, speculating, patient_chain, chat, way
):
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    model = chat.with_structured_output(schema) if way == "structured" else chat | StrOutputParser()
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=speculating, k=2)
    chain = patient_chain(retriever, model)
    chain.invoke("Why is the sky blue?")
    patient_chain.waits_for = 1
    if way == "stream":
        answer = "".join(chain.stream("How do bees dance?"))
    else:
        answer = chain.invoke("How do bees dance?")
    assert answer == ({"year": 0} if way == "structured" else "You asked: How do bees dance?")
    assert speculating.stats().speculation.adopted == 1


def test_what_is_held_to_another_form_is_not_adopted(store, speculating, patient_chain, chat):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=speculating, k=2)
    patient_chain(retriever, chat).invoke("Why is the sky blue?")
    patient_chain.waits_for = 1
    held = chat.bind(guide={"enum": ["blue", "red"]})
    message = patient_chain(retriever, held).invoke("How do bees dance?")
    assert message.content == '"blue"'
    assert message.response_metadata["speculation"] == "other options"


def test_told_what_it_will_write_even_the_first_question_begins_early(
    store, speculating, patient_chain, chat
):
    def template(question, documents):
        context = "\n\n".join(document.text for document in documents)
        return chat.render(PROMPT.invoke({"context": context, "question": question}))

    retriever = RAGCacheRetriever.from_vectorstore(
        store, engine=speculating, k=2, template=template
    )
    patient_chain.waits_for = 1
    patient_chain(retriever, chat).invoke("Why is the sky blue?")
    assert speculating.stats().speculation.adopted == 1
