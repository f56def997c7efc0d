"""Traces ``torch.distributions`` with checks of its arguments and values; the graph then checks while it runs.

Eager branches on each check, which a trace cannot. ``torch.compile`` leaves them out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch._dynamo.eval_frame import TorchPatcher
from torch.distributions import Distribution, Geometric, constraints
from torch.distributions.utils import lazy_property

from .patching import replaced

_SCALAR: Final = torch.Size()
_HOOK = "fake-asserted-distributions"
_lazy: dict[type[Distribution], frozenset[str]] = {}
"""The parameters of each class that are computed at first use. Eager does not check them unless they were given."""


@contextlib.contextmanager
def asserted_distributions() -> Iterator[None]:
    """Assert in graphs what ``torch.distributions`` checks, unless the model or its user turned the checks off."""
    before = Distribution._validate_args
    TorchPatcher.patch()  # turns the checks off, the first time that Dynamo is used
    Distribution.set_default_validate_args(before)
    _note_lazy_parameters(Distribution)
    original = Geometric.__init__

    def geometric(self: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        """``Geometric.__init__``, which has a check of its own."""
        original(self, probs, logits, validate_args=False)
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args
        if self._validate_args:
            _check_parameters(self)
            if probs is not None:
                _assert(self.probs > 0, "Expected parameter probs of distribution Geometric to be positive")

    with (
        replaced(_HOOK, Distribution, "__init__", _initialize),
        replaced(_HOOK, Distribution, "_validate_sample", _check_sample),
        replaced(_HOOK, Geometric, "__init__", geometric),
        replaced(_HOOK, constraints._Symmetric, "check", _is_symmetric),
        replaced(_HOOK, constraints._PositiveSemidefinite, "check", _is_positive_semidefinite),
        replaced(_HOOK, constraints._PositiveDefinite, "check", _is_positive_definite),
    ):
        yield


def _note_lazy_parameters(kind: type[Distribution]) -> None:
    found = (name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, lazy_property))
    _lazy[kind] = frozenset(found)
    for each in kind.__subclasses__():
        _note_lazy_parameters(each)


def _initialize(
    self: Any, batch_shape: torch.Size = _SCALAR, event_shape: torch.Size = _SCALAR, validate_args: bool | None = None
) -> None:
    """``Distribution.__init__``."""
    self._batch_shape = batch_shape
    self._event_shape = event_shape
    if validate_args is not None:
        self._validate_args = validate_args
    if self._validate_args:
        _check_parameters(self)


def _check_parameters(distribution: Any) -> None:
    try:
        expected = distribution.arg_constraints
    except NotImplementedError:
        return  # eager warns
    lazy = _lazy.get(type(distribution), frozenset())
    for name, constraint in expected.items():
        if isinstance(constraint, constraints._Dependent) or (name in lazy and name not in distribution.__dict__):
            continue
        message = f"Expected parameter {name} of distribution {type(distribution).__name__} to satisfy its constraint"
        _assert(constraint.check(getattr(distribution, name)), message)


def _check_sample(self: Any, value: Any) -> None:
    """``Distribution._validate_sample``."""
    kind = type(self).__name__
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"The value of which {kind} computes a probability must be a tensor, not a {type(value).__name__}.")
    events = len(self._event_shape)
    if value.shape[value.dim() - events :] != self._event_shape:
        raise ValueError(f"A value of shape {value.shape} does not end in the event shape {self._event_shape} of {kind}.")
    torch.broadcast_shapes(value.shape, self._batch_shape + self._event_shape)
    try:
        support = self.support
    except NotImplementedError:
        return  # eager warns
    _assert(support.check(value), f"Expected value argument to be within the support of the distribution {kind}")


def _assert(valid: torch.Tensor, message: str) -> None:
    torch.ops.aten._assert_async.msg(valid.all(), message)


def _is_symmetric(self: Any, value: torch.Tensor) -> torch.Tensor:
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def _is_positive_semidefinite(self: Any, value: torch.Tensor) -> torch.Tensor:
    smallest: torch.Tensor = torch.linalg.eigvalsh(value).amin(-1)
    return _is_symmetric(self, value) & smallest.ge(0)


def _is_positive_definite(self: Any, value: torch.Tensor) -> torch.Tensor:
    info: torch.Tensor = torch.linalg.cholesky_ex(value).info
    return _is_symmetric(self, value) & info.eq(0)
