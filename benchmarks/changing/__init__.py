"""Documents that change while they are searched: what benchmarks/changing_*.py share."""
