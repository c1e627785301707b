"""RAGCache for LangChain and LlamaIndex: a retriever and an LLM for each of them.

Importing this package loads neither framework. Import `ragcache_integrations.langchain` or
`ragcache_integrations.llamaindex`.
"""
