"""What the user gave: the entry point, parameters and buffers, modules, and nested arguments."""
