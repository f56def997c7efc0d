"""Makes text of a bundle safe to show: names in it may hold anything."""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that change how other text is shown, or cannot be seen."""


def visible(text: str) -> str:
    """Return ``text`` with control characters, right-to-left marks and other invisible characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if is_hidden(c) else c for c in text)


def is_hidden(character: str) -> bool:
    """Whether a character changes how other text is shown, or cannot be seen."""
    return unicodedata.category(character) in _HIDDEN


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
