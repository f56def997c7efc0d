"""Bundles in OCI registries: references, credentials, downloads, the shared cache and the lock file.

``aotpack_loader.load("oci://…")`` imports it; loading a file does not. It needs the extra
``aotpack-loader[registry]`` (urllib3). A pull verifies each blob while it writes it, and never
executes or interprets code. ``aotpack.registry`` adds push and copy.
"""
