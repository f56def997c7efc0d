"""Devices: code blobs to callables.

One module a kind of code. Each offers a way to turn a target's executables into functions over lists of tensors,
and knows nothing of arguments, autograd or state.
"""
