"""Calls of methods whose arguments, state or results are tensor subclasses."""
