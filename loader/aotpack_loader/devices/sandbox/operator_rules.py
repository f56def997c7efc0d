"""Rules (:mod:`.rules`) of single operators: bags, classes, distances, transforms, attention, convolution."""

from __future__ import annotations

import math
from typing import Any

import torch

from .rules import MAX_ELEMENTS, Arguments, check_range, require, same_dtype, same_shape


def pairs(given: Arguments) -> None:
    """Distances within one matrix: one for each pair of rows."""
    value = given["self"]
    require(value.dim() == 2 and value.is_floating_point(), "self is no matrix of floats")
    require(value.shape[0] < 2**20, "there are too many rows")
    count = value.shape[0] * (value.shape[0] - 1) // 2
    same_dtype("self", "grad", "pdist")(given)
    require(given["p"] >= 0, "p is negative")
    for name in ("grad", "pdist"):
        found = given.get(name)
        require(found is None or (tuple(found.shape) == (count,) and found.is_contiguous()), f"{name} is not of {count} elements")
    require(value.shape[1] > 0 and value.shape[0] > 0, "self is empty")


def distances(given: Arguments) -> None:
    """Distances of the rows of two matrices, and their gradient."""
    first, second = given["x1"], given["x2"]
    require(min(first.dim(), second.dim()) >= 2 and first.shape[-1] == second.shape[-1], "x1 and x2 do not go together")
    require(given["p"] >= 0, "p is negative")
    same_dtype("x1", "x2", "grad", "cdist")(given)
    if "grad" in given:
        leading = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
        expected = (*leading, first.shape[-2], second.shape[-2])
        for name in ("grad", "cdist"):
            require(tuple(given[name].shape) == expected, f"{name} is not of shape {expected}")


def transform(given: Arguments) -> None:
    """Dimensions of a Fourier transform exist, each once."""
    value, dims = given["self"], [int(item) for item in given["dim"]]
    require(all(0 <= item < value.dim() for item in dims), f"dim is {dims}")
    require(dims != [] and len(set(dims)) == len(dims), f"dim is {dims}")
    require(given["normalization"] in range(3), "normalization is unknown")
    require(all(value.shape[item] > 0 for item in dims), "a transformed dimension is empty")
    last = given.get("last_dim_size")
    require(last is None or (last > 0 and value.shape[dims[-1]] == last // 2 + 1), f"last_dim_size is {last}")
    require(value.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128), f"self has {value.dtype}")
    require(value.dtype.is_complex or "onesided" in given, "self is not complex")
    require(not (value.dtype.is_complex and "onesided" in given), "self is complex")


def pivots(given: Arguments) -> None:
    """Pivots are rows of the matrix, counted from 1."""
    value, found = given["LU_data"], given["LU_pivots"]
    require(value.dim() >= 2, "LU_data is no matrix")
    expected = (*value.shape[:-2], min(value.shape[-2:]))
    require(found.dtype == torch.int32 and tuple(found.shape) == expected, f"LU_pivots is not of shape {expected}")
    check_range("LU_pivots", found, value.shape[-2] + 1, 1)


def solved(given: Arguments) -> None:
    """Factors are square, and the right sides fit them. Pivots are rows, counted from 1."""
    factors, right = given["LU"], given["B"]
    require(factors.dim() >= 2 and factors.shape[-1] == factors.shape[-2], "LU is not square")
    pivots({"LU_data": factors, "LU_pivots": given["pivots"]})
    same_dtype("LU", "B")(given)
    require(right.dim() >= 2, "B is no matrix")
    require(right.shape[-2 if given["left"] else -1] == factors.shape[-1], "B does not fit LU")


def segments(given: Arguments) -> None:
    """Lengths, or offsets, of segments add up to the size of the axis that they divide."""
    data, axis, lengths, offsets = given["data"], int(given["axis"]), given.get("lengths"), given.get("offsets")
    require(given.get("indices") is None, "indices are not implemented")
    require((lengths is None) != (offsets is None), "there are lengths and offsets, or none of both")
    require(data.is_floating_point(), "data is not of floats")
    require(given["reduce"] in ("max", "mean", "min", "sum", "prod"), "reduce is unknown")
    name = "offsets" if lengths is None else "lengths"
    bounds = given[name]
    require(bounds.dtype in (torch.int32, torch.int64), f"{name} are no integers")
    require(0 <= axis < data.dim() and bounds.dim() == axis + 1, f"{name} do not fit axis {axis}")
    require(bounds.shape[:-1] == data.shape[:axis], f"{name} are not for the dimensions before axis {axis}")
    whole = data.shape[axis]
    check_range(name, bounds, whole + 1)
    counts = bounds if lengths is not None else bounds.diff(dim=-1)
    require(lengths is not None or bounds.shape[-1] > 0, "there is no offset")
    require(lengths is not None or not bool(bounds.narrow(-1, 0, 1).any()), "offsets do not begin with 0")
    check_range("counts", counts, whole + 1)
    require(bool((counts.sum(-1) == whole).all()), f"{name} do not add up to {whole}")
    given[name] = bounds.contiguous()
    if "grad" in given:
        same_dtype("grad", "output", "data")(given)
        expected = (*counts.shape, *data.shape[axis + 1 :])
        for name in ("grad", "output"):
            require(tuple(given[name].shape) == expected, f"{name} is not of shape {expected}")


def recurrent(given: Arguments) -> None:
    """One layer and direction of an LSTM: weights, biases and states are of its sizes."""
    value, width = given["input"], int(given["hidden_size"])
    require(given["mode"] == 2, "it is no LSTM")
    require(value.dim() == 3 and 0 not in value.shape, "input is not of steps, rows and columns")
    require(given["batch_sizes"] in ([], ()), "packed sequences are not implemented")
    require(0 < width < 2**20 and 0 < given["num_layers"] < 2**20, "hidden_size or num_layers")
    tensors = ["input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_"]
    same_dtype(*tensors)(given)
    require(value.dtype in (torch.float32, torch.bfloat16), f"input has {value.dtype}")
    shapes: dict[str, tuple[int, ...]] = {"weight0": (4 * width, value.shape[2]), "weight1": (4 * width, width)}
    if given["has_biases"]:
        shapes |= {"weight2": (4 * width,), "weight3": (4 * width,)}
    shapes |= {"hx_": (value.shape[1], width), "cx_": (value.shape[1], width)}
    for name, shape in shapes.items():
        require(tuple(given[name].shape) == shape, f"{name} is not of shape {shape}")
    for name in tensors:
        given[name] = given[name].contiguous()


def embedded(given: Arguments) -> None:
    """The gradient is one row for each index."""
    gradient, indices = given["grad_output"], given["indices"]
    require(gradient.dim() > 0 and gradient.shape[:-1] == indices.shape, "grad_output has other sizes than the indices")


def bags(given: Arguments) -> None:
    """Indices are rows of the weight, and offsets ascend within them."""
    weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
    require(weight.dim() == 2 and indices.dim() == 1 == offsets.dim(), "the numbers of dimensions differ")
    require(indices.dtype == offsets.dtype and indices.dtype in (torch.int32, torch.int64), "indices and offsets are no integers")
    check_range("indices", indices, weight.shape[0])
    check_range("offsets", offsets, indices.numel() + 1)
    require(offsets.numel() > 0 and int(offsets[0]) == 0, "offsets do not begin with 0")
    require(bool((offsets[1:] >= offsets[:-1]).all()), "offsets do not ascend")
    scales = given.get("per_sample_weights")
    require(scales is None or (scales.shape == indices.shape and scales.dtype == weight.dtype), "per_sample_weights")
    require(given.get("mode", 0) in range(3), "mode is unknown")
    require(scales is None or given.get("mode", 0) == 0, "per_sample_weights are for sums")
    require(weight.shape[1] > 0, "weight is empty")
    if given.get("include_last_offset"):
        require(int(offsets[-1]) == indices.numel(), "the last offset is not the number of indices")


def bags_backward(given: Arguments) -> None:
    """What the forward has said of its bags still agrees."""
    gradient, indices = given["grad"], given["indices"]
    weight = given.get("weight")
    rows = weight.shape[0] if weight is not None else int(given["num_weights"])
    require(gradient.dim() == 2 and indices.dim() == 1 and 0 <= rows < 2**31, "the numbers of dimensions differ")
    require(weight is None or (weight.dim() == 2 and weight.shape[1] == gradient.shape[1]), "weight")
    require(weight is None or weight.dtype == gradient.dtype, "weight has another element type than the gradient")
    check_range("indices", indices, rows)
    bag = given["offset2bag"]
    if bag.numel() or "offsets" not in given:  # torch computes an empty one from the offsets
        require(bag.shape == indices.shape and bag.dtype == indices.dtype, "offset2bag is not of the size of the indices")
        check_range("offset2bag", bag, gradient.shape[0])
        require(bool((bag[1:] >= bag[:-1]).all()), "offset2bag does not ascend")
    mode = given["mode"]
    require(mode in range(3) and not given.get("sparse"), "mode is unknown")
    counts, largest, scales = given.get("bag_size"), given.get("maximum_indices"), given.get("per_sample_weights")
    offsets = given.get("offsets")
    if offsets is not None:
        require(offsets.dim() == 1 and offsets.dtype == indices.dtype, "offsets")
        check_range("offsets", offsets, indices.numel() + 1)
        ends = offsets.numel() == gradient.shape[0] + 1 and int(offsets[-1]) == indices.numel()
        require(offsets.numel() == gradient.shape[0] or ends, "offsets are not one for each bag, with or without an end")
        require(bool((offsets[1:] >= offsets[:-1]).all()) and not offsets[:1].any(), "offsets do not ascend from 0")
    if counts is not None:
        require(counts.dtype == indices.dtype and tuple(counts.shape) == (gradient.shape[0],), "bag_size is not one for each bag")
        check_range("bag_size", counts, indices.numel() + 1)
    if largest is not None and mode == 2:
        require(largest.shape == gradient.shape and largest.dtype == indices.dtype, "maximum_indices")
        check_range("maximum_indices", largest, rows, -1)
    require(scales is None or (scales.shape == indices.shape and scales.dtype == gradient.dtype), "per_sample_weights")
    require("offset2bag" not in given or indices.is_contiguous(), "strides")


def masked_indices(given: Arguments) -> None:
    """Indices are in range where the mask selects them."""
    value, mask = given["self"], given["mask"]
    require(mask.dtype == torch.bool and len(given["indices"]) <= value.dim(), "the mask is none, or there are too many indices")
    for i, index in enumerate(given["indices"]):
        if index is not None:
            limit = value.shape[i]
            require(index.dtype in (torch.int32, torch.int64), "indices are no integers")
            wrong = ((index < -limit) | (index >= limit)) & mask
            if bool(wrong.any()):
                raise IndexError(f"indices[{i}] is out of bounds")


def repeats(given: Arguments) -> None:
    """The stated size is that of the result."""
    counts, stated = given["repeats"], given.get("output_size")
    require(counts.dim() == 1 and counts.dtype in (torch.int32, torch.int64), "repeats are no integers")
    check_range("repeats", counts, 2**31)
    total = int(counts.sum())
    require(total < 2**31, "the result is too large")
    require(stated is None or stated == total, f"output_size is {stated}, expected {total}")


def classes(given: Arguments) -> None:
    """Targets are classes, weights one for each class, and a gradient is of the shape of the loss."""
    value, target, ignored = given["self"], given["target"], int(given["ignore_index"])
    flat = value.dim() <= 2
    require(value.dim() in (1, 2, 4), "self has another number of dimensions")
    size = value.shape[0] if value.dim() == 1 else value.shape[1]
    expected = () if value.dim() == 1 else (value.shape[0], *value.shape[2:])
    require(tuple(target.shape) in (expected, (1,) if value.dim() == 1 else expected), f"target is not of shape {expected}")
    require(target.dtype in (torch.int64, torch.uint8), "targets are no integers")
    target = target.long()  # as the kernel compares them: among uint8, -1 is 255
    if target.numel() and not (int(target.min()) >= 0 and int(target.max()) < size):
        check_range("target", target[target != ignored], size)
    same_dtype("self", "weight", "grad_output", "total_weight")(given)
    weight, total, gradient = given.get("weight"), given.get("total_weight"), given.get("grad_output")
    require(weight is None or tuple(weight.shape) == (size,), "weight is not one for each class")
    require(total is None or total.numel() == 1, "total_weight is no number")
    require(given["reduction"] in range(3), "reduction is unknown")
    if gradient is not None:
        whole = given["reduction"] == 0 and not (flat and value.dim() == 1)
        require(tuple(gradient.shape) == expected if whole else gradient.numel() == 1, "grad_output is not of the loss's shape")


def margin_classes(given: Arguments) -> None:
    """Targets are classes: one for each row."""
    value, target = given["self"], given["target"]
    require(value.dim() <= 2 and value.numel() > 0, "self has another number of dimensions")
    rows, size = value.shape if value.dim() == 2 else (1, value.numel())
    require(target.dim() <= 1 and target.numel() == rows and target.dtype == torch.int64, "target is not one for each row")
    check_range("target", target, size)
    _loss(given, rows, size)


def margin_labels(given: Arguments) -> None:
    """Targets are classes or -1, as many as there are classes."""
    value, target = given["self"], given["target"]
    fits = target.shape == value.shape or (value.dim() < 2 and target.dim() < 2 and target.numel() == value.numel())
    require(value.dim() <= 2 and value.numel() > 0 and fits, "target is not of the shape of self")
    require(target.dtype == torch.int64, "targets are no integers")
    rows, size = value.shape if value.dim() == 2 else (1, value.numel())
    check_range("target", target, size, -1)
    _loss(given, rows, size)
    flags: Any = given.get("is_target")
    require(
        flags is None or (flags.numel() == value.numel() and flags.dtype == value.dtype), "is_target is not of the shape of self"
    )


def _loss(given: Arguments, rows: int, size: int) -> None:
    weight, gradient = given.get("weight"), given.get("grad_output")
    same_dtype("self", "weight", "grad_output")(given)
    require(weight is None or tuple(weight.shape) == (size,), "weight is not one for each class")
    require(given.get("reduction", 1) in range(3), "reduction is unknown")
    if gradient is not None:
        one = given["reduction"] != 0 or given["self"].dim() < 2
        require(gradient.numel() == 1 if one else tuple(gradient.shape) == (rows,), "grad_output is not of the loss's shape")


def ctc(given: Arguments) -> None:
    """Targets are classes, and lengths are within what there is."""
    probabilities, targets = given["log_probs"], given["targets"]
    require(probabilities.dim() == 3 and 0 not in probabilities.shape, "log_probs has another number of dimensions")
    steps, rows, size = probabilities.shape
    require(targets.dtype in (torch.int32, torch.int64) and targets.dim() in (1, 2), "targets are no integers")
    check_range("targets", targets, size)
    check_range("blank", torch.tensor(int(given["blank"]), device="cpu"), size)
    inputs, wanted = (_integers(given[name]) for name in ("input_lengths", "target_lengths"))
    require(len(inputs) == rows == len(wanted), "lengths are not one for each row")
    require(all(0 <= item <= steps for item in inputs) and min(wanted) >= 0, "a length is out of range")
    if targets.dim() == 1:
        require(sum(wanted) == targets.numel(), "target_lengths do not add up to the targets")
    else:
        require(targets.shape[0] == rows and max(wanted) <= targets.shape[1], "a target is longer than targets")
    if "grad" in given:
        alpha, longest = given["log_alpha"], max(wanted)
        same_dtype("log_probs", "log_alpha", "neg_log_likelihood", "grad")(given)
        require(alpha.dim() == 3 and alpha.shape[:2] == (rows, steps), "log_alpha is not one for each row and step")
        require(alpha.shape[2] == 2 * longest + 1, f"log_alpha is not of {2 * longest + 1} states")
        for name in ("grad", "neg_log_likelihood"):
            require(tuple(given[name].shape) == (rows,), f"{name} is not one for each row")


def _integers(value: Any) -> list[int]:
    return [int(item) for item in (value.tolist() if isinstance(value, torch.Tensor) else value)]


def attention(given: Arguments) -> None:
    """Query, key and value go together, as do what the forward returned and its gradient."""
    query, key, value = given["query"], given["key"], given["value"]
    require(query.dim() == key.dim() == value.dim() == 4, "the numbers of dimensions differ")
    same_dtype("query", "key", "value", "grad_out", "out")(given)
    batch, heads, rows, width = query.shape
    require(0 not in (*query.shape, *key.shape, *value.shape), "a tensor is empty")
    require(key.shape[0] == batch == value.shape[0] and key.shape[1] == heads == value.shape[1], "batches or heads differ")
    require(key.shape[2] == value.shape[2] and key.shape[3] == width == value.shape[3], "lengths or widths differ")
    require(query.is_floating_point(), "query is not of floats")
    mask = given.get("attn_mask")
    if mask is not None:
        full = (batch, heads, rows, key.shape[2])
        require(mask.dim() in (2, 4) and mask.dtype in (query.dtype, torch.bool, torch.float32), "attn_mask")
        fits = all(size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(full), strict=False))
        require(fits, f"attn_mask does not fit {full}")
        require("logsumexp" not in given or mask.dtype != torch.bool, "attn_mask is a truth value")
    if "logsumexp" in given:
        same_shape("grad_out", "out", "query")(given)
        sums = given["logsumexp"]
        working = torch.float64 if query.dtype == torch.float64 else torch.float32
        require(tuple(sums.shape) == (batch, heads, rows) and sums.dtype == working, "logsumexp is not one for each row")


def convolution(given: Arguments) -> None:
    """The result and the padded input are bounded."""
    require(given["input"].dim() == given["weight"].dim(), "the numbers of dimensions differ")
    shape = _convolved(given)
    padded = [
        size + 2 * around
        for size, around in zip(given["input"].shape[2:], _spread(given["padding"], len(shape) - 2), strict=True)
    ]
    for sizes in (shape, [*given["input"].shape[:2], *padded]):
        require(
            math.prod(max(size, 1) for size in sizes) <= MAX_ELEMENTS, f"the result or the padded input has the shape {sizes}"
        )


def convolved(given: Arguments) -> None:
    """The gradient is of the shape that the convolution gives."""
    value, weight, gradient = given["input"], given["weight"], given["grad_output"]
    same_dtype("input", "weight", "grad_output")(given)
    require(weight.dim() == value.dim() == gradient.dim(), "the numbers of dimensions differ")
    require(0 not in weight.shape, "the weight is empty")
    expected = _convolved(given)
    require(list(gradient.shape) == expected, f"grad_output is not of shape {expected}")
    bias = given.get("bias_sizes")
    require(bias is None or list(bias) in ([expected[1]], [0], []), "bias_sizes")


def _convolved(given: Arguments) -> list[int]:
    """The shape that a convolution of these arguments gives."""
    value, weight = given["input"], given["weight"]
    dims = value.dim() - 2
    require(dims in (1, 2, 3), "the input has another number of dimensions")
    groups, transposed = int(given["groups"]), bool(given["transposed"])
    require(groups > 0, "groups")
    stride, padding, dilation, added = (
        _spread(given[name], dims) for name in ("stride", "padding", "dilation", "output_padding")
    )
    require(min(stride) > 0 and min(dilation) > 0 and min(padding) >= 0 and min(added) >= 0, "stride, padding or dilation")
    require(max((*stride, *dilation, *padding, *added)) < 2**31, "stride, padding or dilation")
    inner, outer = (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, weight.shape[0])
    require(value.shape[1] == inner and outer % groups == 0 == inner % groups, "channels")
    expected = [value.shape[0], outer]
    for i in range(dims):
        kernel = dilation[i] * (weight.shape[2 + i] - 1) + 1
        if transposed:
            require(added[i] < max(stride[i], dilation[i]), "output_padding")
            expected.append((value.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + kernel + added[i])
        else:
            expected.append(math.floor((value.shape[2 + i] + 2 * padding[i] - kernel) / stride[i]) + 1)
    return expected


def _spread(value: Any, count: int) -> list[int]:
    """One number for each dimension. A single number stands for all."""
    found = [int(item) for item in value] if isinstance(value, (list, tuple)) else [int(value)]
    require(len(found) in (1, count), "it has not one number for each dimension")
    return found * count if len(found) == 1 else found
