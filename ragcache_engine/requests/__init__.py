"""A request's way through the engine: checked, run, tried once more if it must be, streamed.

| file | holds |
|---|---|
| intake.py | checks and tokenises a prompt, and finds its documents |
| runtime.py | what everything that touches the backend shares; the engine's life |
| loop.py | the engine's event loop, in a thread of its own |
| engine_threads.py | the threads that coroutines' work runs in, some for each kind |
| runner.py | runs requests, counts them, restarts a dead backend |
| retry.py | tries a request a second time, as if it were the first |
| streams.py | carries an answer's pieces to its caller |
| upkeep.py | clears the cache, forgets documents, looks them up |
"""
