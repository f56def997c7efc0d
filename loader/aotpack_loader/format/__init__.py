"""The format: schema, codec, validation, versions, expressions. Standard library and msgspec only, no torch.

Tools may import this package to read a bundle's documents in milliseconds.
"""
