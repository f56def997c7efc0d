"""The bytes of a bundle: container, digests, compression, stored weights and the cache of extracted code.

It handles descriptors, media types and the structure of a bundle, but not the meaning of a graph or
how it runs. Nothing here executes, unpickles or evaluates its input.
"""
