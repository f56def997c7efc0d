"""The code of the fixes of Inductor; their entries are in :mod:`..entries.inductor`."""
