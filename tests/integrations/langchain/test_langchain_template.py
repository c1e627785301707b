"""The form of a chain's prompts: given as a template, or learned from the first question."""

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from waiting import eventually

from ragcache_engine import Template
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM, RAGCacheRetriever

TEXT = "Answer {{briefly}} from these texts.\n\n{context}\n\nQuestion: {question}\n"
CHAT = ChatPromptTemplate.from_messages(
    [("system", "Use these texts:\n{context}"), ("human", "{question}")]
)
WITH_PARTIAL = PromptTemplate.from_template("{tone}\n{context}\n{input}").partial(tone="Be kind.")


def write_prompt(question, documents):
    return f"{' | '.join(document.text for document in documents)} | {question}"


FORMS = {
    "prompt": (PromptTemplate.from_template(TEXT), PromptTemplate.from_template(TEXT), "\n\n"),
    "chat": (CHAT, CHAT, "\n---\n"),
    "partial": (WITH_PARTIAL, WITH_PARTIAL, "\n\n"),
    "text": (PromptTemplate.from_template(TEXT), TEXT, "\n\n"),
    "function": (PromptTemplate.from_template("{context} | {question}"), write_prompt, " | "),
}


@pytest.fixture
def patient_chain(speculating):
    """A chain that waits with its prompt until `waits_for` speculations have started."""

    def chain(retriever, prompt, separator="\n\n"):
        def join(documents):
            assert eventually(lambda: speculating.stats().speculation.started >= chain.waits_for)
            return separator.join(document.page_content for document in documents)

        names = {name: RunnablePassthrough() for name in prompt.input_variables}
        inputs = {**names, "context": retriever | RunnableLambda(join)}
        llm = RAGCacheLLM(engine=speculating, temperature=0, max_new_tokens=200, seed=3)
        return inputs | prompt | llm | StrOutputParser()

    chain.waits_for = 0
    return chain


@pytest.mark.parametrize("form", FORMS)
def test_with_the_chains_prompt_even_the_first_question_begins_early(
    store, speculating, patient_chain, form
):
    prompt, template, separator = FORMS[form]
    retriever = RAGCacheRetriever.from_vectorstore(
        store, engine=speculating, k=2, template=template, document_separator=separator
    )
    patient_chain.waits_for = 1
    answer = patient_chain(retriever, prompt, separator).invoke("Why is the sky blue?")
    assert answer.endswith("Why is the sky blue?")
    assert speculating.stats().speculation.adopted == 1


@pytest.mark.parametrize("form", FORMS)
def test_without_it_the_second_question_does(store, speculating, patient_chain, form):
    prompt, _, separator = FORMS[form]
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=speculating, k=2)
    chain = patient_chain(retriever, prompt, separator)
    chain.invoke("Why is the sky blue?")
    patient_chain.waits_for = 1
    chain.invoke("How do bees dance?")
    assert speculating.stats().speculation.adopted == 1


@pytest.mark.parametrize("form", ["prompt", "chat", "text"])
@pytest.mark.parametrize("kind", [RAGCacheLLM, ChatRAGCache])
def test_with_the_llm_too_nothing_of_the_first_question_is_guessed(store, speculating, form, kind):
    prompt, template, separator = FORMS[form]
    llm = kind(engine=speculating, temperature=0.5, seed=3, max_tokens=33, tenant="someone")
    retriever = RAGCacheRetriever.from_vectorstore(
        store,
        engine=speculating,
        template=template,
        document_separator=separator,
        llm=llm,
    )

    def join(documents):
        assert eventually(lambda: speculating.stats().speculation.started)
        return separator.join(document.page_content for document in documents)

    inputs = {"context": retriever | RunnableLambda(join), "question": RunnablePassthrough()}
    (inputs | prompt | llm).invoke("Why is the sky blue?")
    assert speculating.stats().speculation.adopted == 1


def test_two_retrievers_are_two_chains(store, speculating, patient_chain):
    first, second = (RAGCacheRetriever.from_vectorstore(store, engine=speculating) for _ in "ab")
    patient_chain(first, FORMS["prompt"][0]).invoke("Why is the sky blue?")
    patient_chain(second, FORMS["prompt"][0]).invoke("How do bees dance?")
    assert speculating.stats().speculation.started == 0


def test_a_wrong_template_changes_no_answer(store, speculating, patient_chain):
    retriever = RAGCacheRetriever.from_vectorstore(
        store, engine=speculating, k=2, template=Template("", " ", "{question}")
    )
    patient_chain.waits_for = 1
    answer = patient_chain(retriever, FORMS["prompt"][0]).invoke("Why is the sky blue?")
    assert answer == "You asked: Question: Why is the sky blue?"
    assert speculating.stats().speculation.cancelled == 1


@pytest.mark.parametrize(
    "template", ["{context} {history}", 7, PromptTemplate.from_template("{x}")]
)
def test_what_is_no_template_is_refused_at_birth(store, speculating, template):
    with pytest.raises(ValueError, match="template"):
        RAGCacheRetriever.from_vectorstore(store, engine=speculating, template=template)
