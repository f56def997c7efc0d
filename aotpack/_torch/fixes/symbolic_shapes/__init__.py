"""The code of fixes of symbolic shapes; their entries are in :mod:`..entries.tracing`."""
