"""`python -m ragcache_cli` is `ragcache`."""

from ragcache_cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
