"""Runs the model outside a trace, to find out what it does to Python state and which branches it takes."""
