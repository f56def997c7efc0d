"""Tunes the garbage collector for a build.

A build makes millions of objects, which lead to many full collections. Each walks the million
objects that ``import torch`` leaves, and frees none of those.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

from aotpack_loader._process import is_tuned

_OBJECTS: Final = 10_000
"""New objects before a collection; Python's own number is 700. They still hold little memory."""
_FROZEN_BY_PYTHON: Final = 1_000
"""More objects than Python 3.12 freezes at its start (375). A caller freezes at least those of the
standard library, some 5,000.
"""


@contextlib.contextmanager
def gc_tuned_for_build() -> Iterator[None]:
    """Inside the block, collect less often, and only objects that are made in it. ``AOTPACK_TUNE_PROCESS=0``: as ever."""
    if not is_tuned():
        yield
        return
    threshold, *rest = gc.get_threshold()
    is_first = gc.get_freeze_count() < _FROZEN_BY_PYTHON  # else the caller, or an outer block, decides
    if is_first:
        gc.freeze()
    if threshold:  # 0: the caller wants no collections
        gc.set_threshold(max(threshold, _OBJECTS), *rest)
    try:
        yield
    finally:
        gc.set_threshold(threshold, *rest)
        if is_first:
            gc.unfreeze()
