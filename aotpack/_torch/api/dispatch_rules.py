"""Replaces the rules by which Python's dispatcher decomposes operators above autograd while
tracing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch._C import DispatchKey

Rule = Callable[..., Any]

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def rule_of(operator: Any) -> Rule:
    """torch's rule for an operator, which is its fake kernel, too."""
    rule: Rule = operator.py_kernels[DispatchKey.Meta]
    return rule


@contextlib.contextmanager
def ruled(rules: Mapping[Any, Rule]) -> Iterator[None]:
    """Trace operators by these rules instead of torch's own, which are in the operators' Python
    dispatch tables.
    """
    with _installed({operator: dict.fromkeys(_KEYS, rule) for operator, rule in rules.items()}):
        yield


@contextlib.contextmanager
def unruled(operators: Collection[Any]) -> Iterator[None]:
    """Trace operators without torch's rules: by their kernels, and by their own gradients."""
    with _installed({operator: {} for operator in operators}):
        yield


@contextlib.contextmanager
def batched(rules: Mapping[Any, Rule]) -> Iterator[None]:
    """Trace operators inside ``vmap`` by these rules, which get its tensors as they are."""
    with _installed({operator: {DispatchKey.FuncTorchBatched: rule} for operator, rule in rules.items()}, without=()):
        yield


@contextlib.contextmanager
def _installed(kernels_of: Mapping[Any, Mapping[DispatchKey, Rule]], without: Collection[DispatchKey] = _KEYS) -> Iterator[None]:
    """Give operators these Python kernels, and none of their own for the keys ``without``."""
    before = {operator: dict(operator.py_kernels) for operator in kernels_of}

    def install(operator: Any, kernels: dict[Any, Any]) -> None:
        operator.py_kernels.clear()
        operator.py_kernels.update(kernels)
        operator._dispatch_cache.clear()

    for operator, kernels in kernels_of.items():
        install(operator, {**{key: kernel for key, kernel in before[operator].items() if key not in without}, **kernels})
    try:
        yield
    finally:
        for operator, kernels in before.items():
            install(operator, kernels)
