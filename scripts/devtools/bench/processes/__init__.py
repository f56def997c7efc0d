"""Scripts that run in the processes that are measured."""
