"""Gives traced tensors the strides of real kernels where torch's fake kernels or decompositions
have other strides.

``as_strided`` and the signature of a bundle use the strides in a trace. For some layouts of the
arguments, fake kernels of torch 2.13 return other strides than the real kernels. Examples are
padding of channels-last images, and gradients of losses. Some of Inductor's decompositions have the
same fault. ``scripts/fake-kernels`` compares them all.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import _prims_common
from torch._functorch._aot_autograd import graph_capture_wrappers
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ...api.fake_tensors import hint_of
from ...api.patching import patched, replaced
from ...api.writes import written
from ..aot_autograd.overlaps import has_strides, is_dense
from ..applying import count_call, is_applied
from .kernel_strides import DECOMPOSED, KERNELS


@contextlib.contextmanager
def fix_fake_strides() -> Iterator[None]:
    """Give fake tensors the strides that real kernels return."""
    dispatch = FakeTensorMode.dispatch

    def dispatch_with_strides(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = dispatch(mode, func, types, args, kwargs or {})
        strides = KERNELS.get(func)
        first = _first(found) if strides else None
        if strides is None or first is None:
            return found
        count_call("fake-strides-of-kernels")
        with mode:
            return _with_strides(found, strides(in_order(func, args, kwargs or {}), first), _blank)

    with replaced("fake-strides-of-kernels", FakeTensorMode, "dispatch", dispatch_with_strides):
        yield


@contextlib.contextmanager
def choose_layouts_by_hints() -> Iterator[None]:
    """Decide the layout of tensors with dynamic sizes by the example's sizes.

    A dynamic size may be 0 or 1, so torch (2.13) cannot compare it with another one. It then takes
    channels-last images for contiguous ones. Another call's sizes may give another layout if
    elements overlap, or because of the strides of dimensions of size 1.
    """
    like_channels_last: Callable[..., bool] = _prims_common.are_strides_like_channels_last_or_false
    order = _prims_common.compute_elementwise_output_logical_to_physical_perm

    def like_channels_last_by_hints(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
        return like_channels_last(_example(shape), _example(strides))

    def order_by_hints(*tensors: Any, **options: Any) -> Any:
        sized = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.dim()]
        if any(map(_varies, sized)) and not any(_varies(tensor, _example) for tensor in sized):
            tensors = tuple([_of_the_example(tensor) for tensor in sized])
        return order(*tensors, **options)

    with (
        patched(
            "fake-layouts-of-varying-sizes",
            _prims_common,
            "are_strides_like_channels_last_or_false",
            like_channels_last_by_hints,
        ),
        patched(
            "fake-layouts-of-varying-sizes",
            _prims_common,
            "compute_elementwise_output_logical_to_physical_perm",
            order_by_hints,
        ),
    ):
        yield


def _example(sizes: Sequence[Any]) -> list[Any]:
    """The example's sizes; a size that depends on data stays symbolic."""
    return [hint_of(size) if isinstance(size, torch.SymInt) and size.node.has_hint() else size for size in sizes]


def _varies(tensor: torch.Tensor, sizes: Callable[[Sequence[Any]], Sequence[Any]] = tuple) -> bool:
    """Whether some of a tensor's ``sizes`` or strides are symbolic."""
    return any(isinstance(size, torch.SymInt) for size in (*sizes(tensor.shape), *sizes(tensor.stride())))


def _of_the_example(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the example's sizes and strides of this tensor."""
    with _disable_current_modes():
        return torch.empty_strided(_example(tensor.shape), _example(tensor.stride()), dtype=tensor.dtype, device="meta")


@contextlib.contextmanager
def keep_strides_in_place() -> Iterator[None]:
    """Keep a tensor's strides when it, or a view of it, is mutated; a tensor with gaps becomes a
    dense copy in the same order.

    Functionalization replaces a mutating operator by a functional one, whose result may have other
    strides (``index_add_`` of a transposed tensor; ``torch.compile`` has the same fault).
    AOTAutograd writes to a copy of an argument; this copy keeps the argument's gaps. Without them,
    tensors that eager copies would be views in the trace, and would see the write.
    """
    dispatch = FunctionalTensorMode.__torch_dispatch__
    fresh: Callable[..., Any] = graph_capture_wrappers.maybe_to_fresh_input  # type: ignore[attr-defined]

    def keeping(mode: FunctionalTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = dispatch(mode, func, types, args, kwargs)
        if found is not NotImplemented and isinstance(func, torch._ops.OpOverload):
            for tensor in written(func, args, kwargs or {}):
                for kept in (tensor._base, tensor):
                    if isinstance(kept, FunctionalTensor):
                        _keep(kept)
        return found

    def with_gaps(number: int, tensor: Any, metadata: Any) -> Any:
        copy = fresh(number, tensor, metadata)
        if type(tensor) is not FunctionalTensor or copy is tensor or _alike(copy, tensor.stride()):
            return copy
        return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)

    with (
        replaced("aot-strides-of-what-is-written", FunctionalTensorMode, "__torch_dispatch__", keeping),
        patched("aot-strides-of-what-is-written", graph_capture_wrappers, "maybe_to_fresh_input", with_gaps),
    ):
        yield


def _keep(tensor: FunctionalTensor) -> None:
    tensor.sync()
    value = torch._from_functional_tensor(tensor.elem)
    if not _same(value.shape, tensor.shape) or _alike(value, tensor.stride()):
        return
    strides = tensor.stride() if is_dense(tensor) else _without_gaps(tensor)
    if strides is not None and not _alike(value, strides):
        count_call("aot-strides-of-what-is-written")
        tensor.replace_(_copy(value, strides))
        tensor.commit_update()
        tensor.sync()


def _without_gaps(tensor: torch.Tensor) -> list[Any] | None:
    """Strides of a dense copy in the same order; null if elements may share an address."""
    strides: list[Any] = list(tensor.stride())
    behind: int | torch.SymInt = 0
    count: int | torch.SymInt = 1
    for dim in sorted(range(tensor.dim()), key=lambda dim: hint_of(strides[dim])):
        n, step = tensor.shape[dim], strides[dim]
        if not statically_known_true(n == 1):
            if not statically_known_true(step > behind):
                return None
            behind = behind + (n - 1) * step
        strides[dim] = count
        count = count * n
    return strides


def decomposed_like_kernels(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions whose results have the strides of kernels; :func:`fix_fake_strides` must be
    active.
    """
    if not is_applied("fake-strides-of-kernels"):
        return dict(table)
    return {op: _faithful(op, rule) if op in DECOMPOSED else rule for op, rule in table.items()}


def _faithful(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        found = rule(*args, **kwargs)
        if _first(found) is None:
            return found
        mode = next(leaf.fake_mode for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch._subclasses.FakeTensor))
        with _disable_current_modes(), mode:
            reference = _first(op(*args, **kwargs))
        return found if reference is None else _with_strides(found, reference.stride(), _copy)

    return decomposed


def _with_strides(found: Any, strides: Sequence[Any], make: Callable[[torch.Tensor, Sequence[Any]], torch.Tensor]) -> Any:
    """A kernel's results; those that have the first result's sizes but not ``strides`` are
    recreated with ``strides``.
    """
    size = _first(found).shape  # type: ignore[union-attr]

    def one(result: torch.Tensor) -> torch.Tensor:
        return make(result, strides) if _same(result.shape, size) and not _alike(result, strides) else result

    return tree_map_only(torch.Tensor, one, found)


def _first(found: Any) -> torch.Tensor | None:
    """A kernel's first result, or null: a gradient that is not needed, or an operator that returned
    ``NotImplemented``.
    """
    first = found[0] if isinstance(found, list | tuple) and found else found
    return first if isinstance(first, torch.Tensor) else None


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether sizes are known to be equal; adds no guard on dynamic sizes."""
    return len(one) == len(other) and all(map(statically_known_true, map(operator.eq, one, other)))


def _alike(tensor: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether strides are known to give all elements the same addresses."""
    return statically_known_true(tensor.numel() == 0) or has_strides(tensor, strides)


def _blank(tensor: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)


def _copy(tensor: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """A copy with these dense strides. It is not a view, like any result of a kernel."""
    if _same(strides, make_contiguous_strides_for(tensor.shape)):
        return tensor.clone(memory_format=torch.contiguous_format)
    order = sorted(range(tensor.dim()), key=lambda dim: -hint_of(strides[dim]))
    back = [order.index(dim) for dim in range(tensor.dim())]
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back).clone()


def in_order(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments of a call in the order of the operator's schema; null for each that the
    call leaves out.
    """
    names = [argument.name for argument in func._schema.arguments]
    return [*args, *(kwargs.get(name) for name in names[len(args) :])]
