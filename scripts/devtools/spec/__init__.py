"""Generates the schemas and vectors of the format: `scripts/spec`, `scripts/spec-vectors`."""
