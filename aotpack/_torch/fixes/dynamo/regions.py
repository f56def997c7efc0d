"""Fixes how Dynamo traces nested compile regions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ...api.patching import patched


@contextlib.contextmanager
def trace_every_region() -> Iterator[None]:
    """Trace each call of a nested compile region. Equal graphs still become one region.

    Dynamo repeats the trace of an earlier call if its guards hold for the modules and tensors of the
    later one. It compares neither the classes of submodules nor what a function closes over. With
    ``reuse_hash_fn`` the user says which calls are alike.
    """
    from torch._dynamo.variables import invoke_subgraph  # torch 2.13 is the first to have it

    is_eligible: Callable[..., bool] = invoke_subgraph.is_reuse_eligible

    def is_hashed(*given: Any, has_reuse_hash_fn: bool = False) -> bool:
        return has_reuse_hash_fn and is_eligible(*given, has_reuse_hash_fn=True)

    with patched("dynamo-regions-taken-for-others", invoke_subgraph, "is_reuse_eligible", is_hashed):
        yield
