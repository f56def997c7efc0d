"""What all methods of a build are traced from: the model, its example inputs and its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.format import schema

from .. import capture
from .._torch.tracing.aot_autograd import Decompositions
from ..capture.inputs.aliasing import has_gaps
from ..capture.inputs.dynamic_shapes import DynamicShapes
from ..capture.inputs.dynamic_shapes import resolve as resolve_shapes
from ..capture.inputs.examples import named_leaves, refuse_devices, refuse_layouts, without_lazy_flags
from ..model.state import StoredTensors, describe_state, named_state
from ..model.subclasses import check_memory_is_separate
from .options import MethodPlan, Options
from .progress import Run


@dataclass(frozen=True)
class BuildContext:
    """The inputs that all methods of a build are traced from.

    ``model`` is the user's model, and ``module`` wraps it if it is a function. ``stored`` collects
    the tensors that the bundle stores. ``gaps`` has the numbers of leaves that have gaps and are
    traced as if they were dense.
    ``decompositions`` are those of the targets that the methods are traced for. ``assigned`` are the buffers
    that a call takes and returns in a dictionary. ``function``: whose methods are traced (:attr:`.options.MethodPlan.function`).
    """

    run: Run
    model: Any
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: DynamicShapes
    gaps: frozenset[int]
    state: Sequence[schema.StateEntry]
    stored: StoredTensors
    options: Options
    decompositions: Decompositions
    assigned: Sequence[str] = ()
    function: str = ""

    @property
    def plans(self) -> list[MethodPlan]:
        """The methods to build."""
        return [plan for plan in self.options.plans if plan.function == self.function]


@dataclass(frozen=True)
class Example:
    """The user's model with example arguments and dynamic shapes. ``assigned`` as in :class:`BuildContext`."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any
    assigned: Sequence[str] = ()


def begin(run: Run, example: Example, options: Options) -> BuildContext:
    """Describe the model and its example inputs, and refuse inputs that cannot be traced."""
    model, args, kwargs = example.model, example.args, example.kwargs
    refuse_layouts(named_leaves(model, args, kwargs))
    module = model if isinstance(model, torch.nn.Module) else capture.FunctionModule(model)
    stored = StoredTensors()
    refuse_devices([(name, tensor) for name, _, tensor, _ in named_state(module)])
    context = BuildContext(
        run=run,
        model=model,
        module=module,
        args=args,
        kwargs=kwargs,
        shapes=DynamicShapes(None, {}),
        gaps=frozenset(),
        state=describe_state(module, stored),
        stored=stored,
        options=options,
        decompositions={},
        assigned=example.assigned,
    )
    return with_inputs(run, context, example)


def with_inputs(run: Run, context: BuildContext, example: Example) -> BuildContext:
    """Return the context with the example inputs of its model, and refuse those that cannot be traced."""
    args, kwargs = without_lazy_flags(example.args, example.kwargs)
    tensors = named_leaves(context.model, args, kwargs)
    refuse_layouts(tensors)
    refuse_devices(tensors)
    check_memory_is_separate([*tensors, *((name, tensor) for name, _, tensor, _ in named_state(context.module))])
    shapes = resolve_shapes(context.model, args, kwargs, example.dynamic_shapes)
    return replace(context, args=args, kwargs=kwargs, shapes=shapes, gaps=_gaps(run, tensors, args, kwargs, shapes))


def _gaps(
    run: Run,
    tensors: Sequence[tuple[str, torch.Tensor]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: DynamicShapes,
) -> frozenset[int]:
    """Return the numbers of leaves with dynamic sizes that are slices of larger tensors.

    How the strides of a slice depend on its sizes cannot be known.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    found = frozenset(i for i, sizes in shapes.dims.items() if sizes and has_gaps(leaves[i]))
    slices = {id(leaves[i]) for i in found}
    for path, leaf in tensors:
        if id(leaf) in slices:
            run.warn(f"{path}: the example is a slice of a larger tensor with dynamic sizes, so each call copies such a tensor")
    return found
