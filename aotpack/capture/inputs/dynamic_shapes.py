"""Matches the user's ``dynamic_shapes``, in the form of ``torch.export``, with the example inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import BuildError, Problem

from ..._torch.api.fake_tensors import Bounds
from .examples import argument_names, parameters, spelled_out


@dataclass(frozen=True)
class DynamicShapes:
    """The dynamic sizes of the arguments.

    ``original`` has the form of ``torch.export``, for the traced module. ``dims`` maps leaf
    numbers of ``(args, kwargs)`` to dimensions and the bounds of their sizes. ``integers`` maps
    leaf numbers of dynamic integer arguments to their bounds, and ``paths`` both to their names.
    """

    original: Any
    dims: dict[int, dict[int, Bounds]]
    integers: dict[int, Bounds] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)

    def of_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[torch.Tensor, dict[int, Bounds]]]:
        """Return the example tensors that have dynamic sizes."""
        leaves = pytree.tree_leaves((args, kwargs))
        return [(leaves[i], sizes) for i, sizes in self.dims.items() if sizes]

    def related(self) -> dict[str, list[tuple[int, int | None, Bounds]]]:
        """Return by the name of each ``Dim`` what is derived from it: leaf number, dimension, bounds.

        An integer argument has no dimension.
        """
        found: dict[str, list[tuple[int, int | None, Bounds]]] = {}
        for i, dims in self.dims.items():
            for dim, size in dims.items():
                found.setdefault(size.root, []).append((i, dim, size))
        for i, size in self.integers.items():
            found.setdefault(size.root, []).append((i, None, size))
        found.pop("", None)
        return found

    def contradictions(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Problem]:
        """Yield each ``Dim`` that the example gives several values."""
        leaves = pytree.tree_leaves((args, kwargs))
        for root, items in self.related().items():
            values: dict[Fraction, str] = {}
            for number, dim, size in items:
                value = leaves[number] if dim is None else leaves[number].shape[dim]
                found = Fraction(int(value) - size.offset, size.factor)
                values.setdefault(found, self.paths[number] if dim is None else f"{self.paths[number]}.shape[{dim}]")
            if len(values) > 1 or any(value.denominator > 1 for value in values):
                given = ", ".join(f"{value} by {where}" for value, where in values.items())
                yield Problem(root, f"one size in dynamic_shapes; the example has {given}")

    def shifted(self, count: int) -> DynamicShapes:
        """Return the same sizes with ``count`` more leaves before them.

        They are known by leaf number only.
        """
        integers = {i + count: bounds for i, bounds in self.integers.items()}
        return DynamicShapes(None, {i + count: sizes for i, sizes in self.dims.items()}, integers)


def resolve(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Any) -> DynamicShapes:
    """Match ``spec`` with the arguments.

    Raises:
        BuildError: an argument does not exist, or a tensor does not have the dimension of a size.
            Lists all problems.
    """
    if not spec:
        return DynamicShapes(None, {})
    problems: list[Problem] = []
    found = DynamicShapes(None, {})
    numbers = iter(range(10**9))
    args_by_position, kwargs_by_name = _by_position(model, args, kwargs, spec, problems)
    for i, (name, value) in enumerate(zip(argument_names(model, len(args)), args, strict=True)):
        _match(value, args_by_position.get(i), name, numbers, found, problems)
    for name, value in kwargs.items():
        _match(value, kwargs_by_name.get(name), name, numbers, found, problems)
    problems += found.contradictions(args, kwargs)
    if problems:
        raise BuildError("dynamic_shapes does not fit the example inputs.", problems)
    spec = _by_parameter(
        model, [args_by_position.get(i) for i in range(len(args))], {name: kwargs_by_name.get(name) for name in kwargs}
    )
    return DynamicShapes(spec, found.dims, found.integers)


def _by_parameter(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of ``torch.export``, by the names of the traced module's parameters."""
    traced = model if isinstance(model, torch.nn.Module) else lambda *args, **kwargs: None  # a function's module takes anything
    try:
        return spelled_out(traced, kwargs).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise BuildError(
            "The example inputs do not match the signature of the model.", [Problem("example inputs", str(error))]
        ) from error


def _by_position(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Any, problems: list[Problem]
) -> tuple[dict[int, Any], dict[str, Any]]:
    if isinstance(spec, (tuple, list)):
        return dict(enumerate(spec[: len(args)])), dict(zip(kwargs, spec[len(args) :], strict=False))
    known = parameters(model)
    ordered = [p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in known if p.kind is p.VAR_POSITIONAL), None)
    positions: dict[int, Any] = {}
    names: dict[str, Any] = {}
    for name, value in spec.items():
        if name in kwargs:
            names[name] = value
        elif name in ordered and ordered.index(name) < len(args):
            positions[ordered.index(name)] = value
        elif name == rest:
            positions |= {len(ordered) + i: item for i, item in enumerate(value)}
        else:
            there = ", ".join(dict.fromkeys([*ordered[: len(args)], *kwargs])) or "none"
            problems.append(Problem(f"dynamic_shapes[{name!r}]", f"no example input has that name; there are: {there}"))
    return positions, names


def _match(value: Any, spec: Any, path: str, numbers: Any, found: DynamicShapes, problems: list[Problem]) -> None:
    """Walk a value and its specification together, and number the leaves as pytree does."""
    children = _children(value)
    if children is None:
        number = next(numbers)
        found.paths[number] = path
        if spec is not None and isinstance(value, torch.Tensor):
            found.dims[number] = _sizes(value, spec, path, problems)
        elif spec is None or isinstance(spec, int) or spec is torch.export.Dim.STATIC or _bounds(spec).automatic:
            return
        elif type(value) is int and value >= 0:
            found.integers[number] = _checked(_bounds(spec), value, path, problems)
        else:
            problems.append(
                Problem(path, f"a build fixes this {type(value).__name__}; only tensor sizes and integers from 0 can be dynamic")
            )
        return
    for key, child in children:
        part = None
        if isinstance(spec, Mapping):
            part = spec.get(key)
        elif isinstance(spec, Sequence) and isinstance(key, int) and key < len(spec):
            part = spec[key]
        _match(child, part, f"{path}[{key!r}]", numbers, found, problems)


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return list(enumerate(value))
    leaves, spec = pytree.tree_flatten(value)
    return None if spec.is_leaf() else list(enumerate(leaves))


def _sizes(tensor: torch.Tensor, spec: Any, path: str, problems: list[Problem]) -> dict[int, Bounds]:
    items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
    sizes: dict[int, Bounds] = {}
    for dim, size in items:
        where = f"{path}.shape[{dim}]"
        if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
            problems.append(Problem(where, f"the tensor has {tensor.dim()} dimensions"))
        elif size is None or isinstance(size, int) or size is torch.export.Dim.STATIC:
            if isinstance(size, int) and size != tensor.shape[dim]:
                problems.append(Problem(where, f"dynamic_shapes says {size}, the example has {tensor.shape[dim]}"))
        elif not (hasattr(size, "min") or hasattr(size, "type")):
            problems.append(Problem(where, f"is {size!r} in dynamic_shapes, expected a torch.export.Dim, an integer or None"))
        else:
            sizes[dim % tensor.dim()] = _checked(_bounds(size), tensor.shape[dim], where, problems)
    return sizes


def _checked(bounds: Bounds, value: int, where: str, problems: list[Problem]) -> Bounds:
    """Return the bounds, in which the example's size must be."""
    low, high = bounds.minimum or 0, bounds.maximum
    if value < low or (high is not None and value > high):
        named = f"{bounds.name!r}, " if bounds.name else ""
        problems.append(Problem(where, f"the example has {value}, outside of {named}{low}..{'' if high is None else high}"))
    return bounds


def _bounds(size: Any) -> Bounds:
    """Return the bounds of a ``torch.export.Dim``. A ``min`` of 0 means that there is none."""
    minimum, maximum = getattr(size, "min", None), getattr(size, "max", None)
    low = minimum if isinstance(minimum, int) and minimum > 0 else None
    high = maximum if isinstance(maximum, int) and maximum < 2**62 else None
    name = getattr(size, "__name__", "")  # an expression if the Dim is derived from another
    automatic = getattr(size, "type", None) is torch.export.Dim.AUTO.type
    root, at = getattr(size, "root", None), getattr(size, "fn", None)
    if root is None or at is None:
        own = name if name.isidentifier() else ""
        return Bounds(low, high, automatic, own, root=own)
    return Bounds(low, high, automatic, name, root=root.__name__, factor=at(1) - at(0), offset=at(0))
