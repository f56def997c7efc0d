"""The types that graphs record for their values, and checks of values against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..devices import operators
from ..errors import CorruptBundleError, Problem
from ..format import expressions, schema
from .memory import bytes_of, plain_tensors

Environment = Mapping[str, int]
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Expected:
    """One input or output of a graph.

    ``where`` names it in messages. ``value`` is its recorded type. ``strides``: whether to check
    strides too.
    """

    where: str
    value: schema.Value | None
    strides: bool = True

    def problems(self, value: Any, environment: Environment, device: torch.device) -> Iterator[Problem]:
        """Report how ``value`` differs from the record. Sizes that depend on data are not checked."""
        kind = self.value
        if isinstance(kind, schema.TensorValue):
            if not isinstance(value, torch.Tensor):
                yield Problem(self.where, f"should be a tensor of {kind.dtype}, is {value!r}")
                return
            shape = _sizes(kind.shape, environment)
            if kind.dtype == "uint8" and shape == [0]:  # what a kernel keeps for its gradient: of a size that it alone knows
                shape = [None]
            wanted = f"{kind.dtype}[{','.join('?' if size is None else str(size) for size in shape)}] on {device.type}"
            dtype = str(value.dtype).removeprefix("torch.")
            # Without elements the dtype does not matter, and some operators return another one than
            # in the trace.
            is_placed = value.device.type == device.type and value.layout is torch.strided
            if (dtype != kind.dtype and value.numel()) or not is_placed or not _agree(value.shape, shape):
                layout = "" if value.layout is torch.strided else f" ({value.layout})"
                found = f"{dtype}[{','.join(map(str, value.shape))}] on {value.device.type}{layout}"
                yield Problem(self.where, f"should be {wanted}, is {found}")
                return
            stride = _sizes(kind.stride, environment)
            relevant = [(a, b) for a, b, size in zip(value.stride(), stride, value.shape, strict=True) if size > 1]
            if self.strides and value.numel() and not _agree([a for a, _ in relevant], [b for _, b in relevant]):
                yield Problem(self.where, f"should have the strides {stride}, has {list(value.stride())}")
        elif isinstance(kind, schema.IntValue):
            (size,) = _sizes([kind.expr], environment)
            if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_floating_point():
                value = value.item()  # compiled code returns integers as tensors
            if not isinstance(value, int) or (size is not None and value != size):
                yield Problem(self.where, f"should be the integer {kind.expr if size is None else size}, is {value!r}")


def _sizes(sizes: Sequence[schema.Dim], environment: Environment) -> list[int | None]:
    return [_size(size, environment) for size in sizes]


def _size(size: schema.Dim, environment: Environment) -> int | None:
    try:
        return expressions.evaluate(size, environment)
    except CorruptBundleError:  # a size that only the data determines
        return None


def _agree(found: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(found) == len(wanted) and all(b is None or a == b for a, b in zip(found, wanted, strict=True))


def origins(graph: schema.Graph) -> list[str]:
    """For each output the value whose memory it may use: itself, an input or another node.

    Follows views to their base.
    """
    made = {node.name: node for node in graph.nodes}

    def origin(name: str) -> str:
        while name in made and (source := _viewed(made[name])) is not None:
            name = source
        return name

    return [origin(output.name) if isinstance(output, schema.ValueRef) else "" for output in graph.outputs]


def _viewed(node: schema.Node) -> str | None:
    """The name of the value that a node may return as a view."""
    first = node.args[0] if node.args else None
    if not isinstance(first, schema.ValueRef):
        return None
    if node.op in ("builtin.getitem", "aten._unsafe_view.default", "aten.view.default"):
        return first.name
    space, _, _ = node.op.partition(".")
    if space not in operators.MATH_NAMESPACES or node.op in operators.STAND_INS:
        return None
    declared = operators.resolve(node.op)._schema  # type: ignore[attr-defined]
    return first.name if declared.arguments and declared.arguments[0].alias_info is not None else None


def storage_of(tensor: torch.Tensor) -> int:
    """Address of a plain tensor's storage; 0 if it has no memory."""
    return tensor.untyped_storage().data_ptr()


def storages_of(tensor: torch.Tensor) -> frozenset[int]:
    """Addresses of the storages of a tensor, or of the plain tensors inside a subclass."""
    return frozenset(map(storage_of, plain_tensors(tensor)))


def digest(tensor: torch.Tensor) -> int:
    """A checksum of the elements and their order. It detects changes, but not a deliberate forgery."""
    data = bytes_of(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous())
    total = 0
    for chunk in data.split(_CHUNK):
        weights = torch.arange(1, len(chunk) + 1, device=chunk.device) * 0x9E3779B97F4A7C1  # the products wrap around
        total = (total * 31 + int((chunk * (weights ^ (weights >> 29))).sum())) % 2**64
    return total


def fingerprint(value: Any) -> tuple[int, int] | None:
    """Version and digest of a tensor and of the plain tensors inside it; None for other values.

    A tensor of inference mode has no version.
    """
    if not isinstance(value, torch.Tensor):
        return None
    parts = list(plain_tensors(value))
    counted = {id(tensor): tensor for tensor in (value, *parts) if not tensor.is_inference()}
    total = 0
    for part in parts:
        total = (total * 31 + digest(part)) % 2**64
    return sum(tensor._version for tensor in counted.values()), total
