"""One module a benchmark: ``GOAL`` (null: none) and ``measure(bench)``, which returns plain data with ``ratios``."""
