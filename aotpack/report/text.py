"""Makes text of a bundle safe to show: names in it may hold anything."""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that change how other text is shown, or cannot be seen."""


def visible(text: str) -> str:
    """Return ``text`` with control characters, right-to-left marks and other invisible characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def size_text(count: int) -> str:
    """Return a number of bytes in a readable decimal unit: ``812 B``, ``1.4 MB``."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.4g} TB"


def time_text(seconds: float) -> str:
    """Return a time in seconds in a readable unit: ``340 µs``, ``2.51 ms``, ``12.7 s``."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.1f} s" if seconds >= 9.995 else f"{seconds:.2f} s"
