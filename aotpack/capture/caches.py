"""Empties caches of functions (``functools.lru_cache``) in which a trace left tensors without values."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

import torch.utils._pytree as pytree

from .. import origin
from .._torch.api import fake_tensors

_Cache: Any = type(functools.lru_cache(lambda: None))


@contextlib.contextmanager
def emptied_caches() -> Iterator[None]:
    """After the block, empty the caches of the model's code that hold tensors of a trace. The model would read these later.

    A frozen garbage collector (``gc.freeze``) does not find caches, so the block is around that.
    """
    try:
        yield
    finally:
        for cache in gc.get_referrers(_Cache):
            if isinstance(cache, _Cache) and _is_of_model(cache) and any(map(fake_tensors.is_traced, _values(cache))):
                cache.cache_clear()


def _is_of_model(cache: Any) -> bool:
    code = getattr(cache.__wrapped__, "__code__", None)
    return code is not None and origin.is_model(code.co_filename)


def _values(cache: Any) -> Iterator[Any]:
    """The tensors and others that a cache refers to, in containers too."""
    for held in gc.get_referents(cache):
        yield from pytree.tree_leaves(list(held.values()) if isinstance(held, dict) else held)
