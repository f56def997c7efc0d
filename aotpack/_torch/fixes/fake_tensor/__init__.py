"""The code of fixes of fake tensors; their entries are in :mod:`..entries.tracing`."""
