"""The code of fixes of AOTAutograd; their entries are in :mod:`..entries.tracing`."""
