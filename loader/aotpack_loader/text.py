"""Makes text of a bundle safe to show: names in it may hold anything."""

from __future__ import annotations

SHOWN = 60
"""Characters of a name or a value that a message shows: those of a bundle may have any length."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that change how other text is shown, or cannot be seen."""


def visible(text: str, *, keep: str = "") -> str:
    """Return ``text`` with control characters, right-to-left marks and other invisible characters as escapes.

    Characters in ``keep`` stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    from unicodedata import category  # most text is ASCII and needs no table

    return "".join(_escape(c) if category(c) in _HIDDEN and c not in keep else c for c in text)


def shown(value: object) -> str:
    """Return the ``repr`` of a value, cut to `SHOWN` characters. Python refuses to spell integers of very many digits."""
    try:
        text = repr(value)
    except ValueError:
        return "of too many digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def visible_lines(text: str) -> str:
    """Return ``text`` as :func:`visible` does, but with its line breaks: for a message of several lines."""
    return visible(text, keep="\n")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
