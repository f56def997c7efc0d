"""What a reader written in Python brings to the vectors: a tensor subclass and operators.

A bundle names them and carries no code of them. A reader in another language brings its own.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing


class TwoPart(torch.Tensor):
    """Two tensors of one shape, ``a`` and ``b``. Every operator runs on both, each by itself.

    ``tag`` is its metadata, any plain data. Two that meet have equal tags.
    """

    a: torch.Tensor
    b: torch.Tensor
    tag: Any

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor, tag: Any = None) -> Self:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, a.shape, strides=a.stride(), storage_offset=a.storage_offset(), dtype=a.dtype, device=a.device
        )

    def __init__(self, a: torch.Tensor, b: torch.Tensor, tag: Any = None) -> None:
        self.a, self.b, self.tag = a, b, tag

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a", "b"], self.tag

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], metadata: Any, size: Any, stride: Any) -> Self:
        return cls(inner["a"], inner["b"], metadata)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"TwoPart({self.a!r}, {self.b!r}, {self.tag!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        tag = next(leaf.tag for leaf in leaves if isinstance(leaf, cls))

        def of(name: str) -> Any:
            taken = torch.utils._pytree.tree_map_only(cls, lambda item: getattr(item, name), (args, kwargs))
            return func(*taken[0], **taken[1])

        def both(a: Any, b: Any) -> Any:
            return cls(a, b, tag) if isinstance(a, torch.Tensor) else a

        result = torch.utils._pytree.tree_map(both, of("a"), of("b"))
        return return_and_correct_aliasing(func, args, kwargs, result)


@torch.library.custom_op("vectors::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Two times ``x``."""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda context, gradient: gradient * 2)


@torch.library.custom_op("vectors::count", mutates_args=("counter",))
def count(counter: torch.Tensor, x: torch.Tensor) -> None:
    """Adds the number of elements of ``x`` to ``counter``."""
    counter.add_(x.numel())


@torch.library.custom_op("vectors::positive", mutates_args=())
def positive(x: torch.Tensor) -> None:
    """Fails unless the sum of ``x`` is positive."""
    if not x.sum() > 0:
        raise ValueError("the sum is not positive")


CLASSES = (TwoPart,)
OPERATORS = ("vectors",)
