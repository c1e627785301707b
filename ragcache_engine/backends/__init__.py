"""What answers prompts.

| package | a backend that |
|---|---|
| vllm | runs a model in vLLM |
| server | asks a server over HTTP: `ragcache serve`, or a plain vLLM server |
| memory | has no model, for tests |

choice.py makes the one that a configuration means.
"""
