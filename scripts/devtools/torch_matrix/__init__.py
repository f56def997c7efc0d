"""Builds compiled cases on one release of torch and runs them on others: `scripts/test-torch-matrix`."""
