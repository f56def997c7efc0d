"""The code of fixes that are decompositions; their entries are in :mod:`..entries.decomposition`."""
