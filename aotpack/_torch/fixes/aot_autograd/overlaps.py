"""Handles tensors whose own elements share memory: ``as_strided`` with dynamic sizes, its
gradients, and writes.

torch's own backward of such a view reads the size of its storage as a plain integer
(``as_strided_backward`` in ``FunctionsManual.cpp``). This makes every size in it static. So the
view is made in two steps: ``as_strided`` makes rows that do not overlap, and ``unfold`` makes
windows along them. The backward of ``unfold`` supports dynamic sizes. Both steps differentiate by
torch's own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from aotpack_loader.runtime.memory import ByteRange

from ...api.counting import count_call
from ...api.fake_tensors import hint_of, is_fixed, is_wrapper_subclass, overlaps_itself
from ...api.writes import written

AS_STRIDED = (torch.as_strided, torch.Tensor.as_strided, torch.ops.aten.as_strided, torch.ops.aten.as_strided.default)
_PARAMETERS = ("tensor", "size", "stride", "offset")
_NAMES = {"input": "tensor", "self": "tensor", "storage_offset": "offset"}


class SymbolicOverlapMode(TorchFunctionMode):
    """While active, keeps dynamic sizes dynamic in the gradient of ``as_strided``.

    It handles views whose elements overlap for all values of the sizes. Torch handles
    windows of dynamic size, windows at uneven steps, and views within control flow, where the mode
    is off. It makes their sizes static, and these are rejected like any other static size.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in AS_STRIDED and torch.is_grad_enabled():
            arguments = strided_arguments(args, kwargs)
            view = in_windows(*arguments) if _would_fix(*arguments) else None
            if view is not None:
                count_call("aot-sizes-of-overlapping-strides")
                return view
        return function(*args, **kwargs)


def strided_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, Any, Any, Any]:
    """The tensor, size, stride and offset of a call of ``as_strided``."""
    given = dict(zip(_PARAMETERS, args, strict=False)) | {_NAMES.get(name, name): value for name, value in kwargs.items()}
    return given["tensor"], given["size"], given["stride"], given.get("offset")


class OverlapError(Exception):
    """The model writes to a tensor whose own elements share memory."""


class OverlapMutationMode(TorchFunctionMode):
    """While active, rejects writes to a tensor whose own elements share memory.

    Eager's result depends on the order of its loops, or eager raises. A trace gives another result:
    for an expanded tensor, the sum of all values written to an element.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "").partition(".")[0] in _COPIES:
            copied: torch.Tensor = args[0] if args else kwargs["input"]
            if overlaps_itself(copied) and torch._debug_has_internal_overlap(copied) != 1:  # copies of expanded tensors are dense
                raise OverlapError(
                    "writes to a copy of a tensor whose elements overlap in memory, so the elements of the copy overlap too"
                )
        for tensor in written(function, args, kwargs):
            if overlaps_itself(tensor) and not _writes_to_distinct_part(function, args):
                raise OverlapError("writes to a tensor whose elements overlap in memory")
            if _reads_written_memory(tensor, function, args, kwargs):
                raise OverlapError("reads and writes the same memory through different views in one operation")
        if _writes_overlapping_list(function, args):
            raise OverlapError("writes to a list of tensors one after another, and some of its arguments share memory")
        return function(*args, **kwargs)


class StridedSliceError(Exception):
    """The model reads a tensor by its strides, and a trace gives that tensor other strides."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} uses strides of a slice that is also written to, and the write changes the strides in the trace; use a copy"
        )


class StridedSliceMode(TorchFunctionMode):
    """While active, rejects ``as_strided`` of a slice that is written to, before or after.

    A write makes a new tensor in the trace, contiguous whatever the strides were: ``x = y[::2];
    x.add_(1); x.as_strided(...)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted: dict[StorageWeakRef, str] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in AS_STRIDED or function in _AS_STRIDED_COPIES:
            tensor = args[0] if args else kwargs.get("input", kwargs.get("self"))
            if isinstance(tensor, FunctionalTensor):
                if not has_strides(tensor, torch._from_functional_tensor(tensor.elem).stride()):
                    count_call("aot-strided-after-a-write")
                    raise StridedSliceError(function.__name__)
                if function in AS_STRIDED and not is_dense(tensor):
                    self.counted[memory_of(tensor)] = function.__name__
        for tensor in written(function, args, kwargs) if self.counted else ():
            if isinstance(tensor, FunctionalTensor) and memory_of(tensor) in self.counted:
                count_call("aot-strided-after-a-write")
                raise StridedSliceError(self.counted[memory_of(tensor)])
        return function(*args, **kwargs)


def memory_of(tensor: torch.Tensor) -> StorageWeakRef:
    """The storage that a tensor and its views share; works for traced tensors too."""
    return StorageWeakRef((tensor.elem if isinstance(tensor, FunctionalTensor) else tensor).untyped_storage())


def has_strides(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether the strides of a tensor are known to equal ``strides``, ignoring dimensions of size
    1.
    """
    return all(
        statically_known_true(n == 1) or statically_known_true(own == other)
        for n, own, other in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements may be dense in memory, as those of computed tensors are."""
    expected: int | torch.SymInt = 1
    for n, step in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda dim: hint_of(dim[1])):
        if not statically_known_true(n == 1):
            if statically_known_true(step != expected):
                return False
            expected = expected * n
    return True


_AS_STRIDED_COPIES = (
    *(getattr(torch, name) for name in ("as_strided_copy", "as_strided_scatter")),
    torch.Tensor.as_strided_scatter,
    *(getattr(torch.ops.aten, name) for name in ("as_strided_copy", "as_strided_scatter")),
    *(getattr(torch.ops.aten, name).default for name in ("as_strided_copy", "as_strided_scatter")),
)

_COPIES = {"select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"}
"""Operators that write to a copy of their first argument; the copy keeps that argument's strides."""


def _writes_to_distinct_part(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether an indexed assignment writes to a part of a tensor whose elements do not share
    memory.
    """
    return function is torch.Tensor.__setitem__ and not overlaps_itself(args[0][args[1]])


def _reads_written_memory(
    tensor: torch.Tensor, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call that writes to ``tensor`` reads elements of it after writing them, or in an
    unknown order.

    Eager raises if the tensors have no gaps. Otherwise eager reads whatever its loops have or have
    not written yet.
    """
    name = getattr(function, "__name__", "").partition(".")[0].strip("_")
    anywhere = name in _ANYWHERE
    others = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf is not tensor]
    others = [other for other in others if is_plain(other) and is_plain(tensor) and memory_of(other) == memory_of(tensor)]
    if not others:
        return False
    if function is torch.Tensor.__setitem__:
        part = args[0][args[1]]
        anywhere = memory_of(part) != memory_of(tensor)  # indexed by a tensor
        tensor = tensor if anywhere else part
    written_range = _byte_range(tensor)
    reads = [read for read in map(_byte_range, others) if written_range.meet(read)]
    return any(anywhere or not _is_read_before_write(written_range, read) for read in reads)


def _writes_overlapping_list(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether an operator on lists of tensors uses memory that it has written for another index of
    the lists.
    """
    name = getattr(function, "__name__", "").partition(".")[0]
    if not (name.startswith("_foreach_") and name.endswith("_") and args):
        return False
    at = [(i, tensor) for sequence in args if isinstance(sequence, Sequence) for i, tensor in enumerate(sequence)]
    at = [(i, tensor) for i, tensor in at if isinstance(tensor, torch.Tensor) and is_plain(tensor)]
    written = [tensor for tensor in args[0] if is_plain(tensor)]
    return any(
        i != j and memory_of(tensor) == memory_of(other) and _byte_range(tensor).meet(_byte_range(other))
        for i, tensor in enumerate(written)
        for j, other in at
    )


_ANYWHERE = {
    "index_add",
    "index_copy",
    "index_put",
    "index_reduce",
    "masked_scatter",
    "put",
    "scatter",
    "scatter_add",
    "scatter_reduce",
}
"""Operators that read an element and write to another index."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements are stored by strides.

    For tensors of ``vmap`` or ``grad`` the addresses cannot be known.
    """
    known = not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return known and tensor.layout == torch.strided and not is_wrapper_subclass(tensor)


def _byte_range(tensor: torch.Tensor) -> ByteRange:
    """The byte range at the example's sizes.

    For a traced tensor: that of the trace's own value, whose strides may differ.
    """
    if isinstance(tensor, FunctionalTensor):
        torch._sync(tensor.elem)  # type: ignore[attr-defined,no-untyped-call]
        tensor = torch._from_functional_tensor(tensor.elem)
    shape, stride = (tuple(map(hint_of, numbers)) for numbers in (tensor.shape, tensor.stride()))
    width = tensor.element_size()
    return ByteRange(hint_of(tensor.storage_offset()) * width, shape, stride, width)


def _is_read_before_write(written: ByteRange, read: ByteRange) -> bool:
    """Whether each element is read before it is written: at the same address, or at a later one
    (``x[:, :-1] = x[:, 1:]``).
    """
    dims = [
        [dim for dim in zip(byte_range.shape, byte_range.stride, strict=True) if dim[0] != 1] for byte_range in (written, read)
    ]
    return written.start <= read.start and written.width == read.width and dims[0] == dims[1]


class _Dim(NamedTuple):
    """A dimension of a view; ``position`` is its index."""

    size: int
    stride: int
    position: int

    @property
    def in_place(self) -> bool:
        """Whether its size is 1 or its stride 0: torch's backward squeezes or sums such dimensions
        before it checks overlaps.
        """
        return statically_known_true(self.size == 1) or statically_known_true(self.stride == 0)


def _would_fix(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> bool:
    return tensor.requires_grad and not is_fixed(*tensor.shape, *size, *stride)


def in_windows(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor | None:
    """The view that ``as_strided`` makes, if its elements overlap and windows can make it; else
    None.
    """
    dims = [_Dim(*dim, i) for i, dim in enumerate(zip(size, stride, strict=True))]
    single = [dim for dim in dims if dim.in_place]
    dims = _descending([dim for dim in dims if not dim.in_place])
    group = _overlapping(dims)
    if group is None:
        return None
    outer, windows, inner = [*single, *dims[: group.start]], dims[group], dims[group.stop :]

    unit = windows[-1].stride
    steps = [dim.stride // unit for dim in windows]
    reaches = [(dim.size - 1) * step for dim, step in zip(windows, steps, strict=True)]
    lengths = [1 + sum(reaches[i:]) for i in range(len(windows))]
    if not is_fixed(*lengths[1:], *steps):
        return None  # unfold takes plain integers
    rows = [*outer, _Dim(lengths[0], unit, windows[0].position), *inner]
    view = tensor.as_strided([dim.size for dim in rows], [dim.stride for dim in rows], offset)
    axis = len(outer)
    for length, step in zip(lengths[1:], steps[:-1], strict=True):
        view = view.unfold(axis, int(length), int(step))
        axis = -1  # unfold keeps the number of windows at its axis, and appends the window as the last dimension
    positions = [dim.position for dim in (*rows, *windows[1:])]
    return view.permute([positions.index(i) for i in range(len(positions))])


def _descending(dims: Sequence[_Dim]) -> list[_Dim]:
    """Sorted by descending stride, at equal strides dynamic sizes first; empty if the order depends
    on dynamic sizes.
    """

    def known(one: _Dim, other: _Dim) -> bool:
        return statically_known_true(one.stride >= other.stride)

    def order(one: _Dim, other: _Dim) -> int:
        return known(other, one) - known(one, other) or is_fixed(one.size) - is_fixed(other.size)

    found = sorted(dims, key=cmp_to_key(order))
    return found if all(known(*pair) for pair in pairwise(found)) else []


def _overlapping(dims: Sequence[_Dim]) -> slice | None:
    """The dimensions that overlap: from the first whose stride is shorter than the extent of its
    inner dimensions.

    The slice ends one dimension after the last such dimension.

    None if there is none, or if it is not known that the strides are multiples of the smallest and
    the sizes positive.
    """
    reach, found = 1, []
    for i, dim in reversed(list(enumerate(dims))):
        if statically_known_true(dim.stride < reach):
            found.append(i)
        reach += (dim.size - 1) * dim.stride
    if not found:
        return None
    group = slice(found[-1], found[0] + 2)
    unit = dims[group][-1].stride
    fits = all(statically_known_true(dim.stride % unit == 0) and statically_known_true(dim.size > 0) for dim in dims[group])
    return group if fits else None
