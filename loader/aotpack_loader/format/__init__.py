"""The format of a bundle: schema, codec, validation, versions, expressions.

It needs only the standard library and msgspec, not torch. Tools can import it to read a bundle's
documents in milliseconds.
"""
