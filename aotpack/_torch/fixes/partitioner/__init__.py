"""Fixes of torch's partitioner."""
