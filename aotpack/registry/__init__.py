"""Bundles to and between registries: push, copy, list. The loader's ``registry`` package has what a pull needs."""
