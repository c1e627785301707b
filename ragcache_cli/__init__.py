"""The `ragcache` command. It uses the engine and the integrations as any other program would.

`main` chooses a command, `commands` has one light file for each, and the other modules do the work.
"""
