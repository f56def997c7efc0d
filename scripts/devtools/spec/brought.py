"""Operators and classes that a reader in Python provides for the vectors.

Bundles name its module ``aotpack_vectors``.
"""

from __future__ import annotations

from typing import Any

from devtools.files import import_file
from devtools.paths import ROOT

_MODULE = import_file(ROOT / "spec/vectors/aotpack_vectors.py", "aotpack_vectors")

TwoPart: Any = _MODULE.TwoPart
CLASSES: tuple[type, ...] = _MODULE.CLASSES
OPERATORS: tuple[str, ...] = _MODULE.OPERATORS
