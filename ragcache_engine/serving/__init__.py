"""Serves a backend over HTTP: the messages, the keys, the doors in front, and the routes behind them.

`ragcache serve` puts the doors in front of vLLM's own server. Nothing in here knows vLLM, so any ASGI
server can serve any Backend in this way. `backends/server` is the other end of the wire.
"""
