"""Refuses gradients that flow between the results of one call.

A call is one node of autograd, so ``loss.backward()`` does not pass ``logits`` of the same call. A
hook on ``logits`` would see nothing, and ``logits.grad`` would stay None.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from .._torch_compat import hooks_of, in_transform
from ..errors import AutogradError
from ..format import schema
from .tree import result_paths


class Watch:
    """Notices hooks on results that the original computes other results from."""

    def __init__(self, method: schema.Method) -> None:
        assert method.backward is not None
        self._paths = result_paths(method)
        pairs = [(i, sources) for i, sources in enumerate(method.backward.result_sources) if sources]
        # Hooks run in the order of their tensors. A result comes before its sources, which are computed from fewer results.
        self._pairs = sorted(pairs, key=lambda pair: -len(pair[1]))

    def __call__(self, results: Sequence[Any]) -> None:
        """Watch the results of one call: when the gradient of one arrives, its sources must have no hooks."""
        if not torch.is_grad_enabled() or in_transform():
            return
        checks = []
        for i, sources in self._pairs:
            if results[i].grad_fn is not None:
                check = _Check(self._paths[i])
                results[i].register_hook(check)
                checks.append((check, sources))
        for check, sources in checks:
            check.sources = [_Source(self._paths[j], results[j]) for j in sources if results[j].grad_fn is not None]


class _Source:
    """A result that another is computed from. A caller may drop it and still wait for its hooks."""

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        self.path = path
        self._tensor, self._hooks = weakref.ref(tensor), hooks_of(tensor)

    def is_watched(self) -> bool:
        """Whether the caller waits for its gradient."""
        tensor = self._tensor()
        return (tensor is not None and tensor.retains_grad) or has_hooks_of_caller(self._hooks)


class _Check:
    """A hook on a result. It comes before the hooks of the caller."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.sources: list[_Source] = []

    def __call__(self, gradient: torch.Tensor | None) -> None:
        for source in self.sources:
            if gradient is not None and source.is_watched():
                raise between_error(source.path, self._path)


def has_hooks_of_caller(hooks: Mapping[int, Any]) -> bool:
    """Whether a tensor has hooks of its user. FSDP has hooks on results, too, but needs no gradient there."""
    return any(map(_is_of_caller, hooks.values()))


def _is_of_caller(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return not isinstance(hook, _Check) and not str(getattr(hook, "__module__", "")).startswith("torch.distributed.")


def between_error(source: str, result: str) -> AutogradError:
    """The error for a gradient of ``result`` that somebody waits for at ``source``."""
    return AutogradError(
        f"The gradient of {result} would pass {source} in eager, where a hook, retain_grad() or torch.autograd.grad() waits for "
        "it. A bundle computes no gradients between the results of one call.",
        hint=f"Build a model that returns {source}, and compute {result} from it outside of the bundle.",
    )


def of_method(method: schema.Method) -> Watch | None:
    """What watches the results of a method; None where no result is computed from another."""
    backward = method.backward
    return None if backward is None or not any(backward.result_sources) else Watch(method)


def pairs_of_outputs(method: schema.Method) -> list[tuple[int, int, str, str]] | None:
    """For native code: outputs of result and source, and their paths. None if some are no outputs of the forward graph."""
    found = []
    for i, j in _pairs(method):
        result, source = method.results[i], method.results[j]
        if not isinstance(result, schema.FreshResult) or not isinstance(source, schema.FreshResult):
            return None
        found.append((result.output, source.output))
    paths = result_paths(method) if found else []
    return [(*outputs, paths[j], paths[i]) for outputs, (i, j) in zip(found, _pairs(method), strict=True)]


def _pairs(method: schema.Method) -> Iterator[tuple[int, int]]:
    backward = method.backward
    for i, sources in enumerate([] if backward is None else backward.result_sources):
        yield from ((i, j) for j in sources)
