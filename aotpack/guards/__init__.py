"""Determines for which sizes and strides of the arguments the traced graphs are valid."""
