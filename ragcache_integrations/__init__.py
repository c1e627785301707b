"""RAGCache in the frameworks people already use: a retriever and an LLM for each of them.

Importing this package loads no framework; import `ragcache_integrations.langchain` or
`ragcache_integrations.llamaindex`.
"""
