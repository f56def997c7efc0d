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
        value, at, step = given[name], given.get(dim) or 0, given.get("split_size", 1)
        count = value.shape[at] if -value.dim() <= at < value.dim() else 0
        pieces = count // max(step, 1) if isinstance(step, int) else len(step)
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


def no_overflow(self: str = "self", other: str = "other") -> Rule:
    """Integers are not divided such that the processor refuses: the least one by minus one."""

    def rule(given: Arguments) -> None:
        first, second = given[self], given[other]
        if _has(second, lambda dtype: -1) and _has(first, lambda dtype: torch.iinfo(dtype).min):
            raise ValueError("the least integer is divided by minus one")

    return rule


def _has(value: Any, wanted: Callable[[torch.dtype], int]) -> bool:
    """Whether an integer, or a tensor of integers, has a value."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool or not value.dtype.is_signed:
            return False
        return bool((value == wanted(value.dtype)).any())
    least = {wanted(dtype) for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)}
    return isinstance(value, int) and value in least


def no_least_integers(*names: str) -> Rule:
    """No element is the least integer of its type, whose magnitude the type does not hold."""

    def rule(given: Arguments) -> None:
        if any(_has(given[name], lambda dtype: torch.iinfo(dtype).min) for name in names):
            raise ValueError("the least integer has no magnitude")

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


# ---------------------------------------------------------------- pooling, padding, resampling


def pool_backward(dims: int, *, indices: str | None = "indices") -> Rule:
    """Gradient and indices have one shape, the leading one of the input, and indices are within a plane of it."""

    def rule(given: Arguments) -> None:
        value, gradient = given["self"], given["grad_output"]
        require(value.dim() in (dims + 1, dims + 2) and gradient.dim() == value.dim(), "the numbers of dimensions differ")
        require(gradient.shape[:-dims] == value.shape[:-dims], "the gradient has other leading sizes than the input")
        require(gradient.dtype == value.dtype, "the gradient has another element type than the input")
        require(0 not in value.shape[-dims:] and 0 not in gradient.shape[-dims:], "a plane is empty")
        outer = given.get("output_size")
        require(outer is None or [*outer] == [*gradient.shape[-dims:]], "output_size is not that of the gradient")
        if indices is not None:
            found = given[indices]
            require(found.shape == gradient.shape and found.dtype == torch.int64, "the indices are not those of the gradient")
            check_range(indices, found, math.prod(value.shape[-dims:]))

    return rule


def random_samples(dims: int) -> Rule:
    """Samples are one for each plane and dimension, from 0 to below 1."""

    def rule(given: Arguments) -> None:
        value, samples = given["self"], given["random_samples"]
        require(value.dim() in (dims + 1, dims + 2), "the input has another number of dimensions")
        planes = (value.shape[0] if value.dim() == dims + 2 else 1, value.shape[-dims - 1], dims)
        require(tuple(samples.shape) == planes and samples.dtype == value.dtype, f"random_samples are not {planes}")
        require(bool(((samples >= 0) & (samples < 1)).all()), "random_samples are not from 0 to below 1")
        sizes = [*given["kernel_size"], *given["output_size"]]
        require(len(sizes) == 2 * dims and min(sizes) > 0, "kernel_size or output_size")

    return rule


def padded(given: Arguments) -> None:
    """The padded size is bounded: kernels add up sizes without a look at what an integer holds."""
    sizes, padding = list(given["self"].shape), [int(item) for item in given["padding" if "padding" in given else "pad"]]
    for i, (low, high) in enumerate(zip(padding[::2], padding[1::2], strict=False)):
        require(max(abs(low), abs(high)) <= MAX_ELEMENTS, f"the padding is {padding}")
        if i < len(sizes):
            sizes[-1 - i] += low + high
    require(math.prod(max(size, 0) for size in sizes) <= MAX_ELEMENTS, f"the padded size is {sizes}")


def pad_backward(dims: int, *, reflects: bool) -> Rule:
    """The gradient is of the padded size, and the padding within what the input has."""

    def rule(given: Arguments) -> None:
        value, gradient, padding = given["self"], given["grad_output"], [int(item) for item in given["padding"]]
        require(value.dim() in (dims + 1, dims + 2) and len(padding) == 2 * dims, "the numbers of dimensions differ")
        require(gradient.dtype == value.dtype, "the gradient has another element type than the input")
        expected = list(value.shape)
        for i in range(dims):
            low, high, extent = padding[2 * i], padding[2 * i + 1], value.shape[-1 - i]
            limit = extent - 1 if reflects else MAX_ELEMENTS
            require(extent > 0 and max(low, high) <= limit and min(low, high) > -extent, "the padding is too large")
            expected[-1 - i] += low + high
        require(min(expected[-dims:]) > 0 and list(gradient.shape) == expected, f"the gradient is not of shape {expected}")

    return rule


def grid(dims: int) -> Rule:
    """Modes are known, and a gradient is of the shape of the result."""

    def rule(given: Arguments) -> None:
        value, points = given["input"], given["grid"]
        require(value.dim() == dims + 2 == points.dim() and points.shape[-1] == dims, "the numbers of dimensions differ")
        require(value.shape[0] == points.shape[0] and value.dtype == points.dtype, "input and grid do not go together")
        require(given["interpolation_mode"] in range(3) and given["padding_mode"] in range(3), "the mode is unknown")
        require(0 not in value.shape[2:], "a plane is empty")
        gradient = given.get("grad_output")
        if gradient is not None:
            expected = (*value.shape[:2], *points.shape[1:-1])
            require(
                tuple(gradient.shape) == expected and gradient.dtype == value.dtype, f"grad_output is not of shape {expected}"
            )

    return rule


def scaled(given: Arguments) -> None:
    """An integer holds the positions in the input that a scale gives. Kernels ignore a scale that is not positive."""
    last = max((int(item) for item in given["output_size"]), default=0)
    for name in ("scales", "scales_d", "scales_h", "scales_w"):
        scale = given.get(name)
        if scale is not None and scale > 0:
            require(last / scale <= MAX_ELEMENTS, f"{name} is {scale}, for an output of {last}")


def unfolded(given: Arguments) -> None:
    """The gradient is of the shape that unfolding the stated sizes gives."""
    sizes, dim, extent, step = given["input_sizes"], given["dim"], given["size"], given["step"]
    sizes = [int(item) for item in sizes]
    require(0 < step < 2**31 and -len(sizes) <= dim < max(len(sizes), 1), "dim or step")
    elements("input_sizes")(given)
    if not sizes:
        return
    require(0 <= extent <= sizes[dim], "size")
    expected = [*sizes, extent]
    expected[dim % len(sizes)] = (sizes[dim] - extent) // step + 1
    require(list(given["grad_in"].shape) == expected, f"grad_in is not of shape {expected}")


# ---------------------------------------------------------------- what else is bounded


def trains(given: Arguments) -> None:
    """Batch norm without running statistics computes its own."""
    require(bool(given["training"]), "training is false, and there are no statistics to use")


def softmax(given: Arguments) -> None:
    """The element type of the input is that of the output, or half precision for float32."""
    wanted, output = given["input_dtype"], given["output"].dtype
    require(output.is_floating_point, f"output has the element type {output}")
    require(wanted == output or (output == torch.float32 and wanted == torch.float16), f"input_dtype is {wanted}")


def antialiased(given: Arguments) -> None:
    """The stated sizes are those of the tensor, and scales are those that the sizes give."""
    inner, outer = given.get("input_size"), [int(item) for item in given["output_size"]]
    value = given["self"] if inner is None else given["grad_output"]
    require(value.dim() == 4 and len(outer) == 2 and min(outer) > 0, "output_size")
    sizes = list(value.shape) if inner is None else [int(item) for item in inner]
    require(len(sizes) == 4 and min(sizes) > 0, "the input is empty")
    if inner is not None:
        require(list(value.shape) == [*sizes[:2], *outer], "grad_output is not of the output's size")
    for name, extent, wanted in (("scales_h", sizes[2], outer[0]), ("scales_w", sizes[3], outer[1])):
        scale = given.get(name)
        require(scale is None or (scale > 0 and int(extent * scale) == wanted), f"{name} is {scale}, which the sizes do not give")


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
