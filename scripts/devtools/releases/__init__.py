"""Runs the tests with other releases of torch, and writes what passed where."""
