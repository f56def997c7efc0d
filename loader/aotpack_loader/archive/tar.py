"""A strict reader of a bundle's tar: it accepts only the plain ustar that aotpack writes.

It returns the bounds of entries, without opening files or reading blobs. The standard library's
reader accepts far more: links, sparse files, pax records, concatenations. It also takes
milliseconds to import.
"""

from __future__ import annotations

from ..errors import CorruptBundleError
from .digest import PREFIX, is_digest

BLOCK = 512
MAX_SIZE = 8**11 - 1
"""The largest entry a ustar header can describe, in bytes (8 GiB less one)."""
MAX_ENTRIES = 1 << 16
_MAX_TAIL = 1 << 20  # tar programs pad to 10 KiB; a longer tail is an error
_FILES = ("oci-layout", "index.json")
_FOLDERS = ("blobs/", "blobs/sha256/")
_OCTAL_DIGITS = frozenset(b"01234567")


def is_tar(block: bytes) -> bool:
    """Whether ``block``, the first 512 bytes of a file, is a tar header of any kind."""
    return len(block) == BLOCK and block[257:262] == b"ustar" and _checksum_holds(block)


def is_ours(block: bytes) -> bool:
    """Whether the tar header ``block`` describes an entry that a bundle may have."""
    return block[257:265] == b"ustar\x0000" and _is_allowed(_name(block))


def scan(data: memoryview) -> dict[str, tuple[int, int]]:
    """Return the regular files of the archive ``data``: name → (start, stop), in bytes.

    Raises:
        CorruptBundleError: anything but ustar files and directories of an OCI layout, each once, followed by zeros.
    """
    entries: dict[str, tuple[int, int]] = {}
    seen: set[str] = set()
    position = 0
    while True:
        header = bytes(data[position : position + BLOCK])
        if len(header) < BLOCK:
            raise CorruptBundleError(f"The bundle is truncated: it ends at byte {len(data)}, within its entries.")
        if _is_zero(header):
            break
        name, size, is_file = _entry(header, position)
        if name in seen:
            raise _bad(position, f"there is a second entry {name!r}")
        if len(seen) == MAX_ENTRIES:
            raise _bad(position, f"there are more than {MAX_ENTRIES} entries")
        seen.add(name)
        start = position + BLOCK
        stop = start + size
        position = stop + -size % BLOCK
        if position > len(data):
            raise CorruptBundleError(f"The bundle is truncated: {name} ends at byte {stop}, the file has {len(data)} bytes.")
        if not _is_zero(data[stop:position]):
            raise _bad(stop, f"the padding after {name} is not zero")
        if is_file:
            entries[name] = (start, stop)
    _check_tail(data, position)
    return entries


def _entry(header: bytes, position: int) -> tuple[str, int, bool]:
    """Return name, size in bytes and whether it is a file (not a directory)."""
    if not _checksum_holds(header):
        raise _bad(position, "the header's checksum does not match")
    if header[257:265] != b"ustar\x0000":
        raise _bad(position, "the entry is not in ustar form")
    kind = header[156:157]
    if kind not in (b"0", b"5"):
        raise _bad(position, f"an entry of type {kind!r}; only files and directories are allowed")
    if not (_is_zero(header[157:257]) and _is_zero(header[345:500])):
        raise _bad(position, "an entry with a link target or a name prefix")
    name = _name(header)
    if not _is_allowed(name):
        raise _bad(position, f"an entry of name {name!r}, which no bundle has")
    size = _octal(header[124:136])
    if size is None:
        raise _bad(position, f"the size of {name} is not an octal number")
    is_file = kind == b"0"
    if is_file == (name in _FOLDERS) or (size and not is_file):
        raise _bad(position, f"{name} is not the kind of entry its name says")
    return name, size, is_file


def _check_tail(data: memoryview, position: int) -> None:
    tail = len(data) - position
    if tail < 2 * BLOCK:
        raise CorruptBundleError("The bundle is truncated: its end marker is missing.")
    if tail > _MAX_TAIL or tail % BLOCK or not _is_zero(data[position:]):
        raise _bad(position, "there is data after the end marker")


def _is_zero(data: bytes | memoryview) -> bool:
    # any() would make an object of each byte.
    return not bytes(data).strip(b"\0")


def _checksum_holds(header: bytes) -> bool:
    # The checksum counts its own eight bytes as spaces.
    return _octal(header[148:156]) == sum(header) - sum(header[148:156]) + 8 * 0x20


def _octal(field: bytes) -> int | None:
    """Read octal digits that end with NULs or spaces; None for anything else."""
    digits = field.rstrip(b"\0 ")
    # int() alone would accept signs, underscores and blanks.
    return int(digits, 8) if digits and digits != field and _OCTAL_DIGITS.issuperset(digits) else None


def _name(header: bytes) -> str:
    """The entry's name. A NUL within it is kept, so that it matches no valid name."""
    return header[0:100].rstrip(b"\0").decode("latin-1")


def _is_allowed(name: str) -> bool:
    folder, separator, last = name.rpartition("/")
    return name in _FILES or name in _FOLDERS or (folder + separator == _FOLDERS[1] and is_digest(PREFIX + last))


def _bad(position: int, message: str) -> CorruptBundleError:
    return CorruptBundleError(
        f"The bundle's archive breaks a rule of the format at byte {position}: {message}.",
        hint="Fetch or build the bundle again; an OCI layout packed by another program can be read as a directory.",
    )
