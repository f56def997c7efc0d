"""Example inputs: their sizes, and tensors among them that share storage."""
