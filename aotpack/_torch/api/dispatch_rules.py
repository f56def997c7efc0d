"""Replaces the rules by which Python's dispatcher decomposes operators above autograd while
tracing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._C import DispatchKey

Rule = Callable[..., Any]


@contextlib.contextmanager
def ruled(rules: Mapping[Any, Rule]) -> Iterator[None]:
    """Trace operators by these rules instead of torch's own, which are in the operators' Python
    dispatch tables.
    """
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    before = {operator: dict(operator.py_kernels) for operator in rules}

    def install(operator: Any, kernels: dict[Any, Any]) -> None:
        operator.py_kernels.clear()
        operator.py_kernels.update(kernels)
        operator._dispatch_cache.clear()

    for operator, rule in rules.items():
        install(operator, {**before[operator], **dict.fromkeys(keys, rule)})
    try:
        yield
    finally:
        for operator, kernels in before.items():
            install(operator, kernels)
