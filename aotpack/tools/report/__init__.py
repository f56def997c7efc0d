"""Descriptions of bundles: what they hold, and how two differ."""
