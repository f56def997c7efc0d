"""Names the kind of a file that is not a bundle."""

from __future__ import annotations

from ..errors import NotABundleError
from . import tar

_LOOKS_LIKE = (
    (b"PK\x03\x04", "a zip archive (torch.save and torch.export write such files)"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
    (b"\x7fELF", "a shared library or program"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"{", "a JSON file"),
)


def foreign_file(path: str, block: bytes) -> NotABundleError:
    """The error for a file that is not the tar of a bundle. ``block``: its first 512 bytes."""
    if tar.is_tar(block):
        what = "a tar archive, but not one of an OCI image layout in plain ustar form"
    elif not block:
        what = "an empty file"
    else:
        what = next((text for magic, text in _LOOKS_LIKE if block.startswith(magic)), "a file of an unknown kind")
        if block[8:9] == b"{":
            what = "a safetensors file"
    return NotABundleError(
        f"{path!r} is not a bundle: it is {what}.", hint="Write one with `aotpack build model.py -o model.aotpack`."
    )
