"""What an engine tells about its work: finished requests, hit rates, metrics."""
