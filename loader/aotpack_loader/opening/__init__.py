"""Makes a module from a bundle.

:mod:`.documents` reads the bundle's documents. :mod:`.from_record` starts from a record of an earlier load.
"""
