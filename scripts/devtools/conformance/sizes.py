"""Samples with other sizes than the example's that a bundle with dynamic sizes accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from aotpack.checking.draws import is_satisfied
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format import expressions, schema

from .observe import observe
from .samples import Sample, layout

Sizes = dict[str, int]


def at_other_sizes(samples: Sequence[Sample], path: Path, target: str) -> Iterator[tuple[Sizes, list[Sample]]]:
    """``samples`` of a bundle, resized to other sizes that it accepts, each with the values of the symbols.

    Samples that eager refuses stay unchanged. Values of tensors are repeated. Floating-point values
    are multiplied by up to two. Indices then stay in range, and matrices regular.
    """
    with Bundle.open(path) as bundle:
        ((name, method),) = bundle.program.methods.items()
        (compiled,) = [found for kind, found in bundle.targets.items() if kind.partition(":")[0] == target]
        further = compiled.constraints.get(name, ())
    tried = [{symbol.name: symbol.hint or symbol.minimum for symbol in method.symbols}]
    for sizes in _choices(method, [*method.constraints, *further], tried[0]):
        if sizes in tried:
            continue
        tried.append(sizes)
        shapes = [_shape(leaf, sizes) for leaf in method.leaves if isinstance(leaf, schema.TensorLeaf)]
        found = []
        for sample in samples:
            own, shapes = shapes[: len(sample.tensors)], shapes[len(sample.tensors) :]
            other = _of_shapes(sample, own)
            found.append(other if other is not None and observe(other.function, other).error is None else sample)
        if any(one is not other for one, other in zip(samples, found, strict=True)):
            yield sizes, found


def _choices(method: schema.Method, constraints: Sequence[str], example: Sizes) -> Iterator[Sizes]:
    """Values of symbols that meet the constraints.

    They are all larger, each larger by another number, doubled, and as small as possible.
    """
    holds = [expressions.parse(text) for text in constraints]
    least = {symbol.name: symbol.minimum for symbol in method.symbols}
    wishes = [
        {name: size + 2 for name, size in example.items()},
        {name: size + 1 + i % 5 for i, (name, size) in enumerate(example.items())},
        {name: 2 * size for name, size in example.items()},
        {name: max(size, 1) for name, size in least.items()},
        least,
    ]
    for wished in wishes:
        sizes = dict(example)
        for symbol in method.symbols:  # one after another, because constraints may connect several
            tried = sizes | {symbol.name: wished[symbol.name]}
            if symbol.takes(wished[symbol.name]) and all(is_satisfied(one, tried) for one in holds):
                sizes = tried
        yield sizes


def _shape(leaf: schema.TensorLeaf, sizes: Mapping[str, int]) -> list[int]:
    return [expressions.evaluate(size, sizes) for size in leaf.shape]


def _of_shapes(sample: Sample, shapes: Sequence[Sequence[int]]) -> Sample | None:
    """The resized sample.

    None if it is fixed, already has these shapes, or has tensors that share memory or have gaps.
    """
    storages = [tensor.untyped_storage()._cdata for tensor in sample.tensors if tensor.layout == torch.strided]
    plain = all(isinstance(layout(tensor), list) and not tensor.is_conj() and not tensor.is_neg() for tensor in sample.tensors)
    if sample.fixed or not plain or len(set(storages)) < len(storages):
        return None
    if [list(shape) for shape in sample.sizes] == list(shapes):
        return None
    generator = torch.Generator().manual_seed(3)
    tensors = [_resized(tensor, shape, generator) for tensor, shape in zip(sample.tensors, shapes, strict=True)]
    return replace(sample, tensors=tuple(tensors))


def _resized(tensor: torch.Tensor, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """A tensor's values, repeated or cut to a shape. The order of its dimensions in memory stays the same."""
    value = tensor.detach()
    if list(value.shape) == list(shape):
        return tensor
    for dim, size in enumerate(shape):
        had = value.shape[dim]
        value = (
            value.index_select(dim, torch.arange(size) % had)
            if had
            else value.new_ones([*value.shape[:dim], size, *value.shape[dim + 1 :]])
        )
    if value.is_floating_point() or value.is_complex():
        value = value * (1 + torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.real.dtype))
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    back = [order.index(dim) for dim in range(tensor.dim())]
    return value.permute(order).contiguous().permute(back).detach().requires_grad_(tensor.requires_grad)


__all__ = ["at_other_sizes"]
