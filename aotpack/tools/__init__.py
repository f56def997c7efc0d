"""The command line, what it shows of bundles, and what it measures, over a compiler that is a library.

The library imports nothing of it.
"""
