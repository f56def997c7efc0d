"""Tensor subclasses: flattened before a graph, and rebuilt after it.

The caller passes the classes to ``load``; a bundle only names them. Everything that does not depend
on a call is computed when a bundle is loaded. Programs without subclasses do not use this module.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..._torch_compat import is_plain_tensor
from ...devices.literals import plain_data
from ...errors import AotpackError, Problem, SubclassError
from ...format import expressions, schema

Environment = Mapping[str, int]
Classes = Mapping[str, type[torch.Tensor]]


def resolve(required: Sequence[str], given: Collection[type]) -> Classes:
    """The classes a bundle needs, by name, selected from those the caller passed.

    Raises:
        SubclassError: names each class that is missing or cannot be flattened.
        AotpackError: ``given`` is not a collection of classes.
    """
    if isinstance(given, (str, type)) or not all(isinstance(kind, type) for kind in given):
        raise AotpackError(f"subclasses={given!r} is not understood.", hint="Pass classes: subclasses=[MyTensor].")
    classes = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in given}
    problems = []
    for name in required:
        kind = classes.get(name)
        if kind is None:
            problems.append(Problem(name, "is not among the subclasses given"))
        elif not issubclass(kind, torch.Tensor) or not all(hasattr(kind, method) for method in _PROTOCOL):
            problems.append(Problem(name, f"is not a subclass of Tensor with {' and '.join(_PROTOCOL)}"))
    if problems:
        wanted = ", ".join(name.rpartition(".")[2] for name in required)
        hint = f"Import them and pass them: load(…, subclasses=[{wanted}]). A bundle imports nothing by itself."
        raise SubclassError("This bundle has tensor subclasses, whose classes load() must be given.", problems, hint=hint)
    return {name: classes[name] for name in required}


_PROTOCOL = ("__tensor_flatten__", "__tensor_unflatten__")


class Wrapper:
    """How to flatten one subclass to plain tensors, and to rebuild it."""

    def __init__(self, subclass: schema.Subclass, classes: Classes) -> None:
        self.kind: Any = classes[subclass.name]
        self.attributes = subclass.attributes
        self.metadata = plain_data(subclass.metadata)
        self.parts: list[Wrapper | Plain] = [
            Wrapper(part, classes) if isinstance(part, schema.Subclass) else Plain(part) for part in subclass.parts
        ]
        self._shape, self._stride = _Sizes(subclass.shape), _Sizes(subclass.stride)

    def unflatten(self, values: Iterator[torch.Tensor], environment: Environment) -> torch.Tensor:
        """Make the subclass from the next plain tensors. Nested subclasses consume theirs."""
        inner = {name: part.unflatten(values, environment) for name, part in zip(self.attributes, self.parts, strict=True)}
        shape, stride = self._shape(environment), self._stride(environment)
        # A copy, because the class may keep the dictionary or list that it gets.
        return self.kind.__tensor_unflatten__(inner, copy.deepcopy(self.metadata), shape, stride)  # type: ignore[no-any-return]

    def flatten(self, value: Any, environment: Environment) -> list[torch.Tensor]:
        """The plain tensors of ``value``, with the strides the graphs rely on.

        ``value`` must have no :meth:`mismatch`.
        """
        found: list[torch.Tensor] = []
        for name, part in zip(self.attributes, self.parts, strict=True):
            found += part.flatten(getattr(value, name), environment)
        return found

    def mismatch(self, value: Any, environment: Environment) -> Iterator[tuple[str, str]]:
        """Report what is wrong with ``value``, each with the attribute path (``.a.b``).

        Unknown sizes are not checked.
        """
        if type(value) is not self.kind:
            yield "", f"expected a {self.kind.__name__}, got a {type(value).__name__}"
            return
        names, metadata = value.__tensor_flatten__()
        if list(names) != self.attributes:
            yield "", f"expected a {self.kind.__name__} of {self.attributes}, got one of {list(names)}"
            return
        if metadata != self.metadata:
            yield "", f"expected a {self.kind.__name__} with the metadata {self.metadata!r}, got {metadata!r}"
        for name, part in zip(self.attributes, self.parts, strict=True):
            inner = getattr(value, name)
            if inner.device != value.device:
                yield f".{name}", f"is on {inner.device}, not on {value.device}"
            for path, message in part.mismatch(inner, environment):
                yield f".{name}{path}", message

    def deviations(self, value: Any, environment: Environment) -> Iterator[tuple[str, str]]:
        """Report :meth:`mismatch`, and wrong sizes and strides of the whole, which the class itself computed."""
        yield from self.mismatch(value, environment)
        if type(value) is self.kind and not self._shape.fit(value.shape, environment):
            yield "", f"expected the sizes {list(self._shape.sizes)}, got {list(value.shape)}"
        elif type(value) is self.kind and value.numel() and not self._stride.fit(value.stride(), environment):
            yield "", f"expected the strides {list(self._stride.sizes)}, got {list(value.stride())}"

    def plain_parts(self) -> Iterator[tuple[tuple[str, ...], Plain]]:
        """The plain tensors, nested ones included, each with its attribute path."""
        for name, part in zip(self.attributes, self.parts, strict=True):
            for path, plain in part.plain_parts():
                yield (name, *path), plain


class Plain:
    """A plain tensor inside a subclass."""

    def __init__(self, part: schema.InnerTensor) -> None:
        self.dtype: torch.dtype = getattr(torch, part.dtype)
        self.shape = part.shape
        self._shape, self._stride = _Sizes(part.shape), _Sizes(part.stride)

    def plain_parts(self) -> Iterator[tuple[tuple[str, ...], Plain]]:
        yield (), self

    def unflatten(self, values: Iterator[torch.Tensor], environment: Environment) -> torch.Tensor:
        return next(values)

    def flatten(self, value: torch.Tensor, environment: Environment) -> list[torch.Tensor]:
        if value.is_neg() or value.is_conj():
            value = value.resolve_conj().resolve_neg()  # compiled code reads memory, not flags
        stride = self._stride(environment)
        if value.stride() == stride or not value.numel():
            return [value]
        return [torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)]

    def zeros(self, environment: Environment, device: torch.device) -> torch.Tensor:
        return torch.empty_strided(self._shape(environment), self._stride(environment), dtype=self.dtype, device=device).zero_()

    def mismatch(self, value: Any, environment: Environment) -> Iterator[tuple[str, str]]:
        if not is_plain_tensor(value):
            yield "", f"expected a plain tensor, got a {type(value).__name__}"
        elif value.dtype is not self.dtype or not self._shape.fit(value.shape, environment) or value.layout != torch.strided:
            yield "", f"expected {_show(self.dtype, self._shape.sizes)}, got {_show(value.dtype, value.shape)}"


class _Sizes:
    """Sizes or strides. Dynamic ones are computed from the symbols."""

    def __init__(self, sizes: Sequence[schema.Dim]) -> None:
        self.sizes = tuple(sizes)
        self._needed = frozenset().union(*(expressions.symbols(size) for size in sizes if isinstance(size, str)))

    def __call__(self, environment: Environment) -> tuple[Any, ...]:
        if not self._needed:
            return self.sizes
        return tuple([expressions.evaluate(size, environment) for size in self.sizes])

    def fit(self, sizes: Sequence[int], environment: Environment) -> bool:
        """Whether ``sizes`` match. True if they depend on an argument that is itself wrong and already reported."""
        if len(sizes) != len(self.sizes):
            return False
        return not self._needed <= environment.keys() or tuple(sizes) == self(environment)


def zeros(wrapper: Wrapper, environment: Environment, device: torch.device) -> torch.Tensor:
    """What ``wrapper``'s class returns as zeros. Zero elements in the parts need not mean zero for the class."""
    parts = iter([part.zeros(environment, device) for _, part in wrapper.plain_parts()])
    return torch.zeros_like(wrapper.unflatten(parts, environment))


def _show(dtype: torch.dtype, shape: Sequence[schema.Dim]) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
