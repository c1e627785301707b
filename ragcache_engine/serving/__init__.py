"""Serves a backend over HTTP: the messages, the keys, the doors in front, and the routes behind them.

`ragcache serve` puts the doors in front of vLLM's own server. Nothing in here imports vLLM, so any ASGI
server can serve any Backend in this way; openai_bodies.py knows the fields of vLLM's requests.
`backends/server` is the other end of the wire.

| file | holds |
|---|---|
| doors.py | who may come in, with how much, as whose tenant |
| keys.py, room.py | whose key is whose tenant; how many answers at a time |
| bounded_http.py, settings.py | limits of headers; the settings of a server |
| routes.py, messages.py | the paths below /ragcache, and what is said there |
| openai_bodies.py, openai_answers.py | OpenAI's requests and answers, rewritten on their way |
| recognising.py | finds registered documents in the prompts of any client |
| corpus_routes.py, corpus_warming.py | where documents are registered, and computed on demand |
| near_documents.py, known_contexts.py | what idle time prepares, and behind what documents are stored |
"""
