"""The form of a query engine's prompts: given as a template, or learned from the first question."""

import pytest
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.query_engine import RetrieverQueryEngine
from waiting import eventually

from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

TEXT = 'Use {"these": 1}:\n{context_str}\nQuestion: {query_str}\n'
RENAMED = PromptTemplate(
    "{texts} -- {tone} -- {asked}",
    template_var_mappings={"context_str": "texts", "query_str": "asked"},
).partial_format(tone="Be kind.")
FORMS = {
    "default": (DEFAULT_TEXT_QA_PROMPT_SEL, DEFAULT_TEXT_QA_PROMPT_SEL),
    "prompt": (PromptTemplate(TEXT), PromptTemplate(TEXT)),
    "renamed": (RENAMED, RENAMED),
    "text": (PromptTemplate(TEXT), TEXT),
}


class Patience(BaseNodePostprocessor):
    """Keeps the nodes until the engine has started as many speculations as questions."""

    started: object
    waits_for: int = 0

    def _postprocess_nodes(self, nodes, query_bundle=None):
        assert eventually(lambda: self.started() >= self.waits_for)
        return nodes


@pytest.fixture
def patience(speculating):
    return Patience(started=lambda: speculating.stats().speculation.started)


def patient_queries(speculating, patience, retriever, prompt):
    llm = RAGCacheLLM(engine=speculating, temperature=0, max_new_tokens=200, seed=3)
    return RetrieverQueryEngine.from_args(
        retriever, llm=llm, text_qa_template=prompt, node_postprocessors=[patience]
    )


@pytest.mark.parametrize("form", FORMS)
def test_with_the_text_qa_template_even_the_first_question_begins_early(
    index, speculating, patience, form
):
    prompt, template = FORMS[form]
    retriever = RAGCacheRetriever.from_index(index, engine=speculating, template=template)
    patience.waits_for = 1
    queries = patient_queries(speculating, patience, retriever, prompt)
    assert str(queries.query("Why is the sky blue?")).startswith("You asked: ")
    assert speculating.stats().speculation.adopted == 1


@pytest.mark.parametrize("form", FORMS)
def test_without_it_the_second_question_does(index, speculating, patience, form):
    retriever = RAGCacheRetriever.from_index(index, engine=speculating)
    queries = patient_queries(speculating, patience, retriever, FORMS[form][0])
    queries.query("Why is the sky blue?")
    patience.waits_for = 1
    queries.query("How do bees dance?")
    assert speculating.stats().speculation.adopted == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.5, "seed": 3, "max_new_tokens": 33},
        {"tenant": "someone"},
        {"is_chat_model": True, "system_prompt": "Be kind."},
        {"completion_to_prompt": lambda prompt: f"[{prompt}]"},
    ],
)
def test_with_the_llm_too_nothing_of_the_first_question_is_guessed(
    index, speculating, patience, settings
):
    llm = RAGCacheLLM(engine=speculating, **settings)
    retriever = RAGCacheRetriever.from_index(
        index, engine=speculating, template=DEFAULT_TEXT_QA_PROMPT_SEL, llm=llm
    )
    patience.waits_for = 1
    RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[patience]).query("Why?")
    assert speculating.stats().speculation.adopted == 1


def test_two_retrievers_of_one_chain_learn_from_each_other(index, speculating, patience):
    first, second = (
        RAGCacheRetriever.from_index(index, engine=speculating, chain="mine") for _ in "ab"
    )
    prompt = PromptTemplate(TEXT)
    patient_queries(speculating, patience, first, prompt).query("Why is the sky blue?")
    patience.waits_for = 1
    patient_queries(speculating, patience, second, prompt).query("How do bees dance?")
    assert speculating.stats().speculation.adopted == 1


@pytest.mark.parametrize("template", ["{context_str} {history}", 7, PromptTemplate("{x}")])
def test_what_is_no_template_is_refused_at_birth(index, speculating, template):
    with pytest.raises(ValueError, match="template"):
        RAGCacheRetriever.from_index(index, engine=speculating, template=template)
