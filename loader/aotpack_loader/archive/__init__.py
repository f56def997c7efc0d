"""Bytes: the container, digests, compression, stored weights and the cache of extracted code.

Knows descriptors, media types and the shape of a bundle; does not know what a graph means or how one is run.
Nothing here executes, unpickles or evaluates what it reads.
"""
