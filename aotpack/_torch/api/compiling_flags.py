"""Lets ``torch.compiler.is_compiling()`` and its like be true in the thread that builds alone.

Their flags are torch's, for the whole process. Other modules hold the functions by name, Dynamo
knows them by identity: so the functions stay, and their code changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.fx import _symbolic_trace

from .patching import answered_in_builds

_FLAGS = (
    torch.compiler.is_compiling,
    torch.compiler.is_exporting,
    _symbolic_trace.is_fx_tracing,
    _symbolic_trace.is_fx_symbolic_tracing,
)


@contextlib.contextmanager
def flags_of_this_thread() -> Iterator[None]:
    """Answer false to other threads that ask whether torch compiles, exports or traces."""
    with contextlib.ExitStack() as stack:
        for function in _FLAGS:
            stack.enter_context(answered_in_builds("dynamo-flags", function))
        yield
