"""Runs of the model on fake tensors: what it does to Python state, and which branches it takes."""
