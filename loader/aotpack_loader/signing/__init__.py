"""Signatures of bundles: documents, keys, the user's trusted keys, and who signed a bundle.

Nothing here is imported before a signature must be checked. :mod:`.keys` needs the library
``cryptography``, which ``pip install aotpack-loader[signing]`` installs.
"""
