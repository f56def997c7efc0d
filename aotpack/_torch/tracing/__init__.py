"""Traces a model to a joint graph, and partitions it. The operators that stay whole in all traces are here, too."""
