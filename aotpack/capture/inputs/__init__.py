"""Analyses the example inputs: their names, their dynamic sizes, and tensors that share a storage."""
