"""One module for each benchmark: ``GOAL`` (or None), and ``measure(bench)``, which returns plain
data with ``ratios``.
"""
