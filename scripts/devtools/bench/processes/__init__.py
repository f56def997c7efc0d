"""Scripts that run in the measured processes."""
