#!/bin/sh
# Starts Python as multiprocessing asked for it. The process of vLLM, and no other, inherits the open log
# file; its output goes to that file from the first line on.
if [ -n "$RAGCACHE_LOG_DESCRIPTOR" ] && [ -e "/proc/self/fd/$RAGCACHE_LOG_DESCRIPTOR" ]; then
    exec "$RAGCACHE_PYTHON" "$@" >>"$RAGCACHE_LOG" 2>&1
fi
exec "$RAGCACHE_PYTHON" "$@"
