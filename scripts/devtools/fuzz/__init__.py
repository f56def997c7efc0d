"""Fuzzing of the loader: hostile bundles, and the operators that their graphs may call."""
