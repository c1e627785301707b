"""A LangChain chain over a folder of your own files, with RAGCache's retriever and LLM.

    python examples/own_folder.py                                # asks about RAGCache's own docs
    python examples/own_folder.py NOTES "What did we decide?" "Who is to do it?"

NOTES: a folder of .md and .txt files. The model is the demo's small one; to use another model that vLLM
serves, put its Hugging Face id in the place of `sample.model()`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import sample
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_text_splitters import RecursiveCharacterTextSplitter

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever

DOCS = Path(__file__).parents[1] / "docs"
QUESTIONS = (
    "What is a speculation?",
    "What survives the process?",
    "When is a speculation adopted?",
)
PROMPT = PromptTemplate.from_template(
    "<|im_start|>system\nAnswer from the given passages, in one or two sentences.<|im_end|>\n"
    "<|im_start|>user\n{context}\n\nQuestion: {question}<|im_end|>\n<|im_start|>assistant\n"
)


class MiniLM(Embeddings):
    """The demo's embedding model. Use your own here, such as HuggingFaceEmbeddings."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return sample.vectors(texts)

    def embed_query(self, text: str) -> list[float]:
        return sample.vectors([text])[0]


def main(folder: Path, questions: tuple[str, ...]) -> None:
    store = FaissVectorStore.from_documents(read(folder), MiniLM())
    print(f"{store.document_count} passages from {folder.name}/\n")
    config = EngineConfig(
        model=sample.model(), vllm_args={"dtype": "float32", "max_model_len": 4096}
    )
    with RAGCacheEngine(config) as engine:
        # without RAGCache: retriever = store.as_retriever(search_kwargs={"k": 3})
        retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=3)
        # without RAGCache: llm = VLLM(model=..., temperature=0, max_new_tokens=48)
        llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=48)

        inputs = {"context": retriever | join_texts, "question": RunnablePassthrough()}
        chain = inputs | PROMPT | llm | StrOutputParser()
        for turn in ("cold", "again"):
            for question in questions:
                print(f"[{turn}] {question}")
                for piece in chain.stream(question, config={"callbacks": [Cost()]}):
                    print(piece, end="", flush=True)
                print()


def read(folder: Path) -> list[Document]:
    """Read the folder's text files and cut them into passages."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".txt"))
    if not files:
        raise SystemExit(f"{folder} holds no .md or .txt file")
    texts = [
        Document(path.read_text(encoding="utf-8"), metadata={"file": str(path.relative_to(folder))})
        for path in files
    ]
    return RecursiveCharacterTextSplitter(chunk_size=900, chunk_overlap=0).split_documents(texts)


def join_texts(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


class Cost(BaseCallbackHandler):
    """Prints what an answer cost, which the LLM reports to LangChain's callbacks."""

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        info = response.generations[0][0].generation_info
        usage = info["usage_metadata"]
        cached = usage["input_token_details"]["cache_read"]
        print(
            f"\n  first token after {info['ttft_s']:.2f} s; {cached:,} of {usage['input_tokens']:,} "
            f"prompt tokens cached",
            end="",
        )


if __name__ == "__main__":  # vLLM starts processes that import this script again
    given = sys.argv[1:]
    main(Path(given[0]) if given else DOCS, tuple(given[1:]) or QUESTIONS)
