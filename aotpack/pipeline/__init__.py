"""Builds bundles, stage by stage. Start reading at :mod:`.pipeline`."""
