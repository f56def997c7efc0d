"""The models that are measured beside the examples."""
