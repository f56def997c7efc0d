"""The garbage collector, kept out of a start.

``import torch`` leaves more than a million objects. A collection that starts by chance while a bundle is opened walks all of
them (80 ms), and finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No automatic collection inside."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
