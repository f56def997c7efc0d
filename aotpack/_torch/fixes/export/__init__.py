"""The code of fixes of ``torch.export``; their entries are in :mod:`..entries.tracing`."""
