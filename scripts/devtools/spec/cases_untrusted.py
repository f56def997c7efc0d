"""Valid vectors whose graphs a reader without trust in them must stop: some of their calls are hostile (S6 to S9)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .arguments import Own
from .case import INFER, Call, Case, of, t


def pooled_backward(gradient: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Torch's kernel writes where the indices say. It does not check them."""
    arguments = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *arguments, indices)
    return found


def _indices(*values: int) -> Own:
    return Own(torch.tensor(values).reshape(1, 1, 2, 2))


def _pooled_calls() -> list[Call]:
    gradient, x = t(1, 1, 2, 2), t(1, 1, 4, 4)
    wrong = (_indices(0, 2, 8, 10**6), _indices(0, 2, 8, -1))
    refused = [Call([gradient, x, one], **INFER, refused="S6", kind="OperatorError") for one in wrong]
    return [Call([gradient, x, _indices(0, 2, 8, 15)], **INFER), *refused]


def counted(turns: Tensor, x: Tensor) -> Tensor:
    """A loop whose length the caller's data decide."""
    found: Any = torch._higher_order_ops.while_loop(lambda i, y: i > 0, lambda i, y: (i - 1, y + 1), (turns, x))
    return found[1]  # type: ignore[no-any-return]


def _counted_calls() -> list[Call]:
    few, many = Own(torch.tensor(3)), Own(torch.tensor(10**12))
    return [Call([few, t(2)], **INFER), Call([many, t(2)], **INFER, refused="S7", kind="OperatorError")]


def filled(x: Tensor, count: int) -> Tensor:
    return x.new_ones(count) * x.sum()


def _filled_calls() -> list[Call]:
    return [Call([t(3), 4], **INFER), Call([t(3), 2**45], **INFER, refused="S8", kind="OperatorError")]


def writes_two(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    b.mul_(2)
    return a.sum()


def _second_write_does_not_fit(documents: Any) -> None:
    """Let the graphs return twice as many elements for the second argument as it has."""
    for method in documents.program["methods"].values():
        documents.open_method(method)
        for node in documents.forward["nodes"]:  # none is left if another method has the same graph
            if node["op"] == "aten.mul.Tensor":
                node.update(op="aten.cat.default", args=[[node["args"][0], node["args"][0]]])
                documents.set_forward()


def _failing_calls() -> list[Call]:
    return [Call([t(4), t(4)], **INFER, refused="S9", kind="_RefusedWriteError")]


UNTRUSTED: dict[str, Case] = {
    "unchecked_indices": Case(
        "an operator whose kernel writes where indices say, called with indices in range and out of range",
        ["S6"],
        of(pooled_backward),
        lambda: (t(1, 1, 2, 2), t(1, 1, 4, 4), _indices(0, 2, 8, 10)),
        _pooled_calls,
    ),
    "counted_loop": Case(
        "a loop of as many turns as the caller's data say",
        ["S7"],
        of(counted),
        lambda: (Own(torch.tensor(2)), t(2)),
        _counted_calls,
    ),
    "stated_size": Case(
        "a tensor of as many elements as the caller says",
        ["S8"],
        of(filled),
        lambda: (t(3), 5),
        _filled_calls,
        build={"dynamic_shapes": {"x": None, "count": torch.export.Dim.DYNAMIC}},
    ),
    "second_write": Case(
        "two arguments that are written, of which the second write does not fit",
        ["S9"],
        of(writes_two),
        lambda: (t(4), t(4)),
        _failing_calls,
        edit=_second_write_does_not_fit,
    ),
}
