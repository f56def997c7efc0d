"""Loads and describes the user's model: its entry point, parameters and buffers, modules, and nested arguments."""
