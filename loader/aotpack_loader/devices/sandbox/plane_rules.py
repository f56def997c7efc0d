"""Rules (:mod:`.rules`) of operators on planes: pooling, padding, resampling."""

from __future__ import annotations

import math

import torch

from .rules import MAX_ELEMENTS, Arguments, Rule, check_range, elements, require


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


def planes(given: Arguments) -> None:
    """The result is bounded. It has planes of the stated size, or in a backward the stated size of the input."""
    if "input_size" in given:
        elements("input_size")(given)
        return
    value, sizes = given["self"], [int(item) for item in given["output_size"]]
    count = math.prod([*value.shape[: -len(sizes)], *map(abs, sizes)])
    require(count <= MAX_ELEMENTS, f"output_size {sizes} states {count} elements, the limit is {MAX_ELEMENTS}")


def diagonals(given: Arguments) -> None:
    """The result of ``diag_embed`` is bounded: a square for each row, larger by the offset."""
    value = given["self"]
    require(value.dim() > 0, "the input has no dimension")
    edge = value.shape[-1] + abs(int(given["offset"]))
    require(math.prod(value.shape[:-1]) * edge * edge <= MAX_ELEMENTS, f"squares of {edge} elements are too large")


def columns(given: Arguments) -> None:
    """The result of ``im2col`` is bounded: a column for each place of the window in the padded plane."""
    value, windows = given["self"], 1
    for extent, window, dilation, padding, stride in zip(
        value.shape[-2:], *(map(int, given[name]) for name in ("kernel_size", "dilation", "padding", "stride")), strict=False
    ):
        windows *= window * max((extent + 2 * padding - dilation * (window - 1) - 1) // max(stride, 1) + 1, 0)
    require(math.prod(value.shape[:-2]) * abs(windows) <= MAX_ELEMENTS, f"the result has more than {MAX_ELEMENTS} elements")


def grid(dims: int) -> Rule:
    """Modes are known, a gradient is of the result's shape, and points that are moved into the plane are numbers below 1e30."""

    def rule(given: Arguments) -> None:
        value, points = given["input"], given["grid"]
        require(value.dim() == dims + 2 == points.dim() and points.shape[-1] == dims, "the numbers of dimensions differ")
        require(value.shape[0] == points.shape[0] and value.dtype == points.dtype, "input and grid do not go together")
        require(given["interpolation_mode"] in range(3) and given["padding_mode"] in range(3), "the mode is unknown")
        require(0 not in value.shape[2:], "a plane is empty")
        # Where points are moved into the plane, kernels read and write at what NaN converts to. Infinity reflects to NaN.
        moved = given["padding_mode"] != 0
        require(not moved or bool((points.abs() < 1e30).all()), "a point of the grid is no number, or too large")
        gradient = given.get("grad_output")
        if gradient is not None:
            expected = (*value.shape[:2], *points.shape[1:-1])
            require(
                tuple(gradient.shape) == expected and gradient.dtype == value.dtype, f"grad_output is not of shape {expected}"
            )

    return rule


def scaled(given: Arguments) -> None:
    """The result is bounded, and an integer holds the positions in the input that a scale gives.

    Kernels ignore a scale that is not positive.
    """
    planes(given)
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


def antialiased(given: Arguments) -> None:
    """The stated sizes are those of the tensor, and scales are those that the sizes give."""
    inner, outer = given.get("input_size"), [int(item) for item in given["output_size"]]
    value = given["self"] if inner is None else given["grad_output"]
    require(value.dim() == 4 and len(outer) == 2 and min(outer) > 0, "output_size")
    sizes = list(value.shape) if inner is None else [int(item) for item in inner]
    require(len(sizes) == 4 and min(sizes) > 0, "the input is empty")
    planes(given)
    if inner is not None:
        require(list(value.shape) == [*sizes[:2], *outer], "grad_output is not of the output's size")
    for name, extent, wanted in (("scales_h", sizes[2], outer[0]), ("scales_w", sizes[3], outer[1])):
        scale = given.get(name)
        require(scale is None or (scale > 0 and int(extent * scale) == wanted), f"{name} is {scale}, which the sizes do not give")
