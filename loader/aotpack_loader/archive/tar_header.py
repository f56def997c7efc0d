"""Headers of the tar entries of a bundle, as a writer makes them. :mod:`.tar` reads them."""

from __future__ import annotations

from .tar import BLOCK


def header(name: str, size: int) -> bytes:
    """Return the ustar header of a regular file: mode 0644, owner, group and time zero."""
    block = bytearray(BLOCK)
    fields = (
        (0, name.encode("ascii")),
        (100, b"0000644\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, b"%011o\0" % size),
        (136, b"00000000000\0"),
        (148, b"        "),  # the checksum field counts as spaces
        (156, b"0"),
        (257, b"ustar\x0000"),
    )
    for offset, value in fields:
        block[offset : offset + len(value)] = value
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)
