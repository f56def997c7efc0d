"""The self-test of a bundle: recorded inputs, and what eager made of them, compared with what the bundle makes.

Stored tensors are named ``input.<leaf>``, ``result.<number>``, ``gradient.<parameter>``, ``input_gradient.<leaf>`` and
``buffer.<name>``. The backward starts from ones in every result that requires a gradient.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .archive.bundle import Bundle
from .archive.weights import CODES, View, WeightMap
from .devices.literals import literal
from .errors import CorruptBundleError
from .format import expressions, schema
from .loading import load
from .runtime.tree import flattener, unflattener

_DTYPES = {code: name for name, code in CODES.items()}
_EPSILON_FACTOR = 2e3
"""Tolerance in units of the element type's epsilon, relative to the largest element of the expected tensor."""


@dataclass(frozen=True)
class SelfTestReport:
    """Rows are ``(name, largest absolute error, tolerance, ok)``."""

    ran: bool
    ok: bool
    rows: list[tuple[str, float, float, bool]]


def run_self_test(
    path: str | os.PathLike[str],
    backend: str | None = None,
    trust: str | Collection[str] | None = None,
    operators: Collection[str] = (),
) -> SelfTestReport:
    """Load the bundle, run its recorded inputs through one step and compare.

    Raises:
        TargetError, TrustError: ``backend`` cannot run here.
    """
    with Bundle.open(path) as bundle:
        recorded = bundle.self_test()
        if recorded is None:
            return SelfTestReport(False, True, [])
        expected = {name: _read(recorded, name).clone() for name in recorded.names()}
    model = load(path, backend=backend, trust=trust, operators=operators)
    method = _method(model.aotpack.program)
    args, kwargs = _arguments(method, expected)
    rows = [_compare(name, expected.pop(name, None), value) for name, value in observe(model, method, args, kwargs)]
    rows += [(name, float("inf"), 0.0, False) for name in expected if not name.startswith("input.")]
    return SelfTestReport(True, all(row[3] for row in rows), rows)


def observe(
    model: torch.nn.Module, method: schema.Method, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run one step of ``model``, eager or loaded, and yield all that it makes, by its name in the self-test."""
    torch.manual_seed(seed)
    training = any(mode.training and mode.grad for mode in method.serves)
    model.train(training)
    with torch.set_grad_enabled(training):
        results = _flatten(method.outputs, model(*args, **kwargs))
    tensors = [(i, value) for i, value in enumerate(results) if isinstance(value, torch.Tensor)]
    heads = [value for _, value in tensors if value.requires_grad and value.grad_fn is not None]
    if heads:
        torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
    for i, value in tensors:
        value = value.detach()
        yield f"result.{i}", value if value.layout == torch.strided else value.to_dense()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield f"gradient.{name}", parameter.grad
    for i, leaf in enumerate(_flatten(method.inputs, (args, kwargs))):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.grad is not None:
            yield f"input_gradient.{i}", leaf.grad
    for name, buffer in model.named_buffers():
        yield f"buffer.{name}", buffer


def recorded_inputs(bundle: Bundle) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The recorded example inputs, or None where the bundle has none."""
    recorded = bundle.self_test()
    if recorded is None:
        return None
    names = [name for name in recorded.names() if name.startswith("input.")]
    return _arguments(_method(bundle.program), {name: _read(recorded, name).clone() for name in names})


def random_inputs(method: schema.Method, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs that fit ``method``: normal floats, integers and booleans of 0 and 1 (safe as indices), sizes as at build."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {symbol.name: symbol.hint or symbol.minimum for symbol in method.symbols}
    leaves: list[Any] = []
    for leaf in method.leaves:
        if isinstance(leaf, schema.ConstantLeaf):
            leaves.append(literal(leaf.value))
            continue
        if isinstance(leaf, schema.IntegerLeaf):
            leaves.append(sizes[leaf.size])
            continue
        shape = [expressions.evaluate(size, sizes) for size in leaf.shape]
        leaves.append(_random(shape, getattr(torch, leaf.dtype), generator).requires_grad_(leaf.requires_grad))
    args, kwargs = unflattener(method.inputs)(iter(leaves))
    return args, kwargs


def _random(shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _method(program: schema.Program) -> schema.Method:
    """The method the self-test is of: the one with a backward, if any."""
    methods = program.methods
    return methods.get("train") or next(iter(methods.values()))


def _arguments(method: schema.Method, recorded: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    leaves: list[Any] = []
    for i, leaf in enumerate(method.leaves):
        if isinstance(leaf, schema.ConstantLeaf):
            leaves.append(literal(leaf.value))
        elif isinstance(leaf, schema.IntegerLeaf):
            leaves.append(next(symbol.hint or symbol.minimum for symbol in method.symbols if symbol.name == leaf.size))
        elif f"input.{i}" in recorded:
            leaves.append(recorded[f"input.{i}"].requires_grad_(leaf.requires_grad))
        else:
            raise CorruptBundleError(f"The self-test lacks the input {leaf.path}.")
    args, kwargs = unflattener(method.inputs)(iter(leaves))
    return args, kwargs


def _flatten(tree: schema.Tree, value: Any) -> list[Any]:
    leaves: list[Any] = []
    flattener(tree, "")(value, leaves, [])
    return leaves


def _read(stored: WeightMap, name: str) -> torch.Tensor:
    found = stored.stored(name)
    return stored.tensor(View.contiguous(name, _DTYPES[found.dtype], found.shape))


def _compare(name: str, expected: torch.Tensor | None, found: torch.Tensor) -> tuple[str, float, float, bool]:
    if expected is None or expected.shape != found.shape or expected.dtype != found.dtype:
        return name, float("inf"), 0.0, False
    if not found.numel():
        return name, 0.0, 0.0, True
    if not (found.dtype.is_floating_point or found.dtype.is_complex):
        different = float((expected != found).sum())
        return name, different, 0.0, different == 0
    limit = torch.finfo(found.dtype).eps * _EPSILON_FACTOR * max(float(expected.abs().max()), 1e-6)
    error = float((expected - found).abs().nan_to_num(float("inf")).max())
    return name, error, limit, error <= limit


__all__ = ["SelfTestReport", "observe", "random_inputs", "recorded_inputs", "run_self_test"]
