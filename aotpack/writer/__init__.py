"""Writes bundles: blobs, weights, and the compile cache."""
