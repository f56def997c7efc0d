"""What a user gives for a method of the model. Commands import this module before torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

FORWARD: Final = "forward"
"""The name of the model's own call among methods."""


@dataclass(frozen=True)
class Method:
    """A method of the model that is built beside its call, over the same parameters and buffers.

    Args:
        function: a function that takes the model before its other arguments, or the name of a method or a
            submodule of the model.
        args: example inputs, without the model.
        kwargs: example inputs by name.
        dynamic_shapes: the dynamic sizes, as :func:`aotpack.build` takes them.
        modes: any of ``train``, ``infer``, ``eval``. The default is as for the model's own call.
    """

    function: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    dynamic_shapes: Any = None
    modes: Sequence[str] | None = None
