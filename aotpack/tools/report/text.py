"""Text for people: names of a bundle made visible, sizes and times in readable units."""

from __future__ import annotations

from aotpack_loader.text import visible as visible
from aotpack_loader.text import visible_lines as visible_lines


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
