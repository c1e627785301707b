"""The `ragcache` command. It stands above the integrations and uses them as anybody would."""
