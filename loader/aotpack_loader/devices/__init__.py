"""Devices: turn the code of a target into callables.

Each kind of code has one module. It turns a target's executables into functions over lists of
tensors. It does not depend on arguments, autograd or state.
"""
