"""What kernels of torch rely on without checking it, as functions of the arguments by name.

A rule raises ``ValueError`` or ``IndexError``. :mod:`.allowed` says which operator has which rules.
Each rule was written for a call that ended the process, or wrote or read outside of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

Arguments = dict[str, Any]
Rule = Callable[[Arguments], None]
Bound = Callable[[Arguments], int]

MAX_ELEMENTS: Final = 2**31
"""Of a result whose sizes a graph states."""
MAX_RESULTS: Final = 2**16
"""Of an operator that takes a tensor apart."""


def require(holds: bool, message: str) -> None:
    """Raise an error unless ``holds``."""
    if not holds:
        raise ValueError(message)


def same_shape(*names: str) -> Rule:
    """These tensors have one shape. A missing one is ignored."""

    def rule(given: Arguments) -> None:
        shapes = {name: tuple(given[name].shape) for name in names if given.get(name) is not None}
        require(len(set(shapes.values())) <= 1, f"the shapes differ: {shapes}")

    return rule


def same_dtype(*names: str) -> Rule:
    """These tensors have one element type."""

    def rule(given: Arguments) -> None:
        found = {name: given[name].dtype for name in names if given.get(name) is not None}
        require(len(set(found.values())) <= 1, f"the element types differ: {found}")

    return rule


def rank(name: str, *ranks: int) -> Rule:
    """The tensor has one of these numbers of dimensions."""

    def rule(given: Arguments) -> None:
        require(given[name].dim() in ranks, f"{name} has {given[name].dim()} dimensions, expected {ranks}")

    return rule


def in_range(name: str, bound: Bound, *, least: int = 0) -> Rule:
    """All elements of the integer tensor are at least ``least`` and below ``bound``."""

    def rule(given: Arguments) -> None:
        check_range(name, given.get(name), bound(given), least)

    return rule


def check_range(name: str, value: Any, stop: int, least: int = 0) -> None:
    """Raise an error unless all elements of a tensor of indices are in ``least..stop-1``. None is ignored."""
    if value is None or not value.numel():
        return
    require(not value.is_floating_point() and not value.is_complex(), f"{name} has the element type {value.dtype}")
    low, high = (int(end) for end in torch.aminmax(value))
    if low < least or high >= stop:
        raise IndexError(f"{name} is out of bounds: it has {low} to {high}, expected {least} to {stop - 1}")


def size(name: str, dim: int = 0) -> Bound:
    """The size of a tensor."""
    return lambda given: given[name].shape[dim] if -given[name].dim() <= dim < given[name].dim() else 0


def number(name: str) -> Bound:
    """An integer argument."""
    return lambda given: int(given[name])


def numel(name: str, count: Bound) -> Rule:
    """The tensor has that many elements. A missing one is ignored."""

    def rule(given: Arguments) -> None:
        value = given.get(name)
        if value is not None:
            require(value.numel() == count(given), f"{name} has {value.numel()} elements, expected {count(given)}")

    return rule


def between(name: str, least: float, most: float) -> Rule:
    """A number is in this range. A missing one is ignored."""

    def rule(given: Arguments) -> None:
        value = given.get(name)
        require(value is None or least <= value <= most, f"{name} is {value}, expected {least} to {most}")

    return rule


def elements(*names: str) -> Rule:
    """The product of the stated sizes is bounded, so that little code cannot ask for much memory."""

    def rule(given: Arguments) -> None:
        for name in names:
            sizes = given.get(name)
            found = [sizes] if isinstance(sizes, int) else sizes or ()
            count = math.prod(abs(int(item)) for item in found)
            require(count <= MAX_ELEMENTS, f"{name} states {count} elements, the limit is {MAX_ELEMENTS}")

    return rule


def product(*names: str) -> Rule:
    """The product of these sizes is bounded, and a missing one is the first."""

    def rule(given: Arguments) -> None:
        found = [int(given[name]) if given.get(name) is not None else int(given[names[0]]) for name in names]
        require(abs(math.prod(found)) <= MAX_ELEMENTS, f"{', '.join(names)} state {math.prod(found)} elements")

    return rule


def extents(name: str) -> Rule:
    """Each stated size is bounded, also if another is 0."""

    def rule(given: Arguments) -> None:
        require(
            all(abs(int(item)) <= MAX_RESULTS for item in given[name]), f"{name} is {given[name]}, the limit is {MAX_RESULTS}"
        )

    return rule


def few_results(name: str, dim: str) -> Rule:
    """The tensor is taken apart into a bounded number of results, whatever their size."""

    def rule(given: Arguments) -> None:
        value, at, step = given[name], given.get(dim) or 0, int(given.get("split_size", 1))
        count = value.shape[at] if -value.dim() <= at < value.dim() else 0
        pieces = count // max(step, 1)
        require(pieces <= MAX_RESULTS, f"it has {pieces} results, the limit is {MAX_RESULTS}")

    return rule


def read_twice(given: Arguments) -> None:
    """The kernel counts or checks integers or truth values before it uses them: it gets copies, as whatever has a rule."""


def copied(*names: str) -> Rule:
    """The kernel gets copies of these: it writes to them, which its schema does not say, or relies on what it has read before."""

    def rule(given: Arguments) -> None:
        for name in names:
            if given.get(name) is not None:
                given[name] = given[name].clone()

    return rule


def no_overflow(given: Arguments) -> None:
    """Integers are not divided such that the processor refuses: the least one by minus one."""
    dtype = torch.result_type(given["self"], given["other"])
    if _has(given["other"], dtype, lambda: -1) and _has(given["self"], dtype, lambda: torch.iinfo(dtype).min):
        raise ValueError("the least integer is divided by minus one")


def no_least_integers(given: Arguments) -> None:
    """No element is the least integer of its type, whose magnitude the type does not hold."""
    dtype = torch.result_type(given["self"], given["other"])
    if any(_has(given[name], dtype, lambda: torch.iinfo(dtype).min) for name in ("self", "other")):
        raise ValueError("the least integer has no magnitude")


def _has(value: Any, dtype: torch.dtype, wanted: Callable[[], int]) -> bool:
    """Whether a number or tensor has an integer once it is converted to ``dtype``, as kernels convert it: 2**32 - 1 is -1."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool or not dtype.is_signed:
        return False
    return bool((torch.as_tensor(value, device="cpu").to(dtype) == wanted()).any())


def contiguous(*names: str) -> Rule:
    """The kernel gets these without gaps or repeated elements, because it does not look at their strides."""

    def rule(given: Arguments) -> None:
        for name in names:
            if given.get(name) is not None:
                given[name] = given[name].contiguous()

    return rule


def rows_apart(*names: str) -> Rule:
    """The last dimension of these has no gaps, and what lies along the others does not overlap. Else the kernel gets copies."""

    def rule(given: Arguments) -> None:
        for name in names:
            value = given.get(name)
            if value is not None and value.dim():
                width = value.shape[-1]
                others = [step for size, step in zip(value.shape[:-1], value.stride()[:-1], strict=True) if size > 1]
                if value.stride(-1) != 1 or any(step < width for step in others):
                    given[name] = value.contiguous()

    return rule


def at_least(name: str, least: int) -> Rule:
    """No element is below ``least``: the kernel counts up from it."""

    def rule(given: Arguments) -> None:
        require(not bool((given[name] < least).any()), f"{name} has an element below {least}")

    return rule


# ---------------------------------------------------------------- normalisation


def channels(*names: str, of: str = "input") -> Rule:
    """These have one element for each channel, which is dimension 1 of the input."""

    def rule(given: Arguments) -> None:
        value = given[of]
        require(value.dim() >= 2, f"{of} has {value.dim()} dimensions, expected 2 at least")
        for name in names:
            found = given.get(name)
            if found is not None:
                require(tuple(found.shape) == (value.shape[1],), f"{name} has the shape {tuple(found.shape)}")

    return rule


def statistics(given: Arguments) -> None:
    """Batch norm has the statistics that its mode reads: those of the batch, or the running ones."""
    train = given.get("train", given.get("training"))
    for name in ("save_mean", "save_invstd") if train else ("running_mean", "running_var"):
        if name in given:
            found, count = given[name], given["input"].shape[1]
            require(found is not None and tuple(found.shape) == (count,), f"{name} is not one for each of {count} channels")


def layer_norm_backward(given: Arguments) -> None:
    """Statistics are one for each row, weight and bias are of the normalised shape."""
    value, normal = given["input"], [int(item) for item in given["normalized_shape"]]
    require(list(value.shape[value.dim() - len(normal) :]) == normal and 0 < len(normal) <= value.dim(), "normalized_shape")
    rows = math.prod(value.shape[: value.dim() - len(normal)])
    same_shape("grad_out", "input")(given)
    same_dtype("grad_out", "input")(given)
    same_dtype("mean", "rstd")(given)
    for name in ("mean", "rstd"):
        require(given[name].numel() == rows, f"{name} has {given[name].numel()} elements, expected {rows}")
    for name in ("weight", "bias"):
        found = given.get(name)
        require(found is None or list(found.shape) == normal, f"{name} is not of the normalised shape")


def group_norm(given: Arguments) -> None:
    """The stated sizes are those of the input."""
    n, c, rest, group = (int(given[name]) for name in ("N", "C", "HxW", "group"))
    require(min(n, c, rest) >= 0 and group > 0 and c % group == 0, "its sizes do not go together")
    require(given["input"].numel() == n * c * rest, "input is of another size than N, C and HxW say")
    for name, count in (("weight", c), ("bias", c), ("mean", n * group), ("rstd", n * group), ("grad_out", n * c * rest)):
        found = given.get(name)
        require(found is None or found.numel() == count, f"{name} is not of {count} elements")
    same_dtype("grad_out", "input")(given)
    same_dtype("mean", "rstd")(given)


# ---------------------------------------------------------------- what else is bounded


def trains(given: Arguments) -> None:
    """Batch norm without running statistics computes its own."""
    require(bool(given["training"]), "training is false, and there are no statistics to use")


def softmax(given: Arguments) -> None:
    """The element type of the input is that of the output, or half precision for float32."""
    wanted, output = given["input_dtype"], given["output"].dtype
    require(output.is_floating_point, f"output has the element type {output}")
    require(wanted == output or (output == torch.float32 and wanted == torch.float16), f"input_dtype is {wanted}")


def counted(given: Arguments) -> None:
    """The number of elements of a range is bounded."""
    start, step = given.get("start", 0), given.get("step", 1)
    if "length" in given:
        require(0 <= given["length"] <= MAX_ELEMENTS, f"length is {given['length']}")
        return
    require(all(isinstance(x, (int, float)) for x in (start, step, given["end"])), "it is no range of numbers")
    count = abs((given["end"] - start) / step) if step else 0
    require(count <= MAX_ELEMENTS, f"the range has {count} elements, the limit is {MAX_ELEMENTS}")  # false for nan too


def degrees(given: Arguments) -> None:
    """The degree of a polynomial is bounded: its kernels loop as often."""
    degree = given["n"]
    most = degree.abs().max().item() if degree.numel() else 0
    require(most <= 1024, f"n is {most}, the limit is 1024")
