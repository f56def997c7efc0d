"""Models that are measured in addition to the examples."""
