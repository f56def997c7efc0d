"""Signs bundles, and makes the documents that travel with them."""

from .sign import Signed, sign, write_keys

__all__ = ["Signed", "sign", "write_keys"]
