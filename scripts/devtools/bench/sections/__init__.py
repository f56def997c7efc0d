"""One module for each benchmark.

Each has ``GOAL`` (or None), and ``measure(bench)``, which returns plain data with ``ratios``.
"""
