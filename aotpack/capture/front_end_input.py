"""Shared by the front ends: their input, what they refuse, and what a dry run adds to a joint graph."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.api import checkpoint as checkpoints
from .._torch.api import fake_tensors
from .._torch.api.constants import KnownConstants
from .._torch.api.torch_types import FakeTensorMode
from .._torch.refusals import lost_gradients
from .._torch.refusals.storage_resizes import RESIZES, no_storage_resizes
from .._torch.tracing import aot_autograd
from .._torch.tracing.randomness import no_python_random
from .._torch.tracing.state_assignments import kept_state_changes
from ..graph import source_line
from . import containers, source_lines
from .dry_run import repeat
from .inputs.dynamic_shapes import DynamicShapes
from .own_data import ASSIGNS, operation
from .returned import Returned


@dataclass(frozen=True)
class FrontEndInput:
    """The input of a front end.

    ``args`` and ``kwargs`` are the example, and ``shapes`` its dynamic sizes. ``decompositions``
    is the table for the model's operators. ``training`` and ``grad`` are the modes of the model and
    of autograd, and ``exact_random`` keeps every random draw. The front end records in ``returned``
    what the model returns.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: DynamicShapes
    decompositions: aot_autograd.Decompositions | None
    training: bool
    grad: bool
    exact_random: bool
    returned: Returned = field(default_factory=Returned)


def fake_example(source: FrontEndInput) -> tuple[FakeTensorMode, tuple[Any, ...], dict[str, Any]]:
    """The example inputs as fake tensors of a new mode. Dynamic sizes and integers are symbols."""
    mode, shapes = fake_tensors.fake_mode_with_shapes(), source.shapes
    dims = {id(tensor): sizes for tensor, sizes in shapes.of_tensors(source.args, source.kwargs)}
    fakes: dict[int, torch.Tensor] = {}

    def fake(leaf: Any) -> Any:
        if id(leaf) not in fakes:
            fakes[id(leaf)] = fake_tensors.fake_tensor(mode, leaf, dims.get(id(leaf), {}))
        return fakes[id(leaf)]

    leaves, spec = pytree.tree_flatten((source.args, source.kwargs))
    integers = {i: fake_tensors.varying_integer(mode, leaves[i], bounds) for i, bounds in shapes.integers.items()}
    faked = [fake(leaf) if isinstance(leaf, torch.Tensor) else integers.get(i, leaf) for i, leaf in enumerate(leaves)]
    args, kwargs = pytree.tree_unflatten(faked, spec)
    return mode, args, kwargs


@contextlib.contextmanager
def observed_python(model: torch.nn.Module) -> Iterator[Set[str]]:
    """Trace the model's Python: refuse what the trace would lose, and keep what the model changes while it runs.

    Yields the names of the buffers to which the model has assigned so far.
    """
    with (
        kept_state_changes(model) as assigned,
        lost_gradients.plain_saving(),
        no_python_random(),
        no_storage_resizes(),
        containers.refused(model),
        KnownConstants(),
    ):
        yield assigned


def has_modes(model: torch.nn.Module) -> bool:
    """Whether the model has a train and an eval mode.

    A module that ``torch.export`` made has one fixed mode. So has a model whose ``train`` is a loop of the user's,
    with other arguments.
    """
    with repeat.unchanged(model):
        try:
            model.train(model.training)
        except (NotImplementedError, TypeError):
            return False
    return True


_STORAGE_CHANGES = {
    **dict.fromkeys(ASSIGNS, "assigns to .data of a tensor; use copy_() under no_grad"),
    "resize_storage_bytes_": RESIZES,
}


def refuse_storage_changes(graph: torch.fx.Graph) -> None:
    """Refuse operations on the storage of tensors, and ``detach_()`` of inputs. The graph would not contain their effects.

    Raises:
        UnsupportedError: names the source line of each operation.
    """
    calls = [(node, operation(node)) for node in graph.nodes]
    problems = [
        Problem(source_line(node) or node.name, _STORAGE_CHANGES[name]) for node, name in calls if name in _STORAGE_CHANGES
    ]
    if problems:
        raise UnsupportedError("The model changes the storage of tensors, which a bundle cannot repeat.", problems)
    detached = [node for node, name in calls if name == "detach_" and _is_input_with_gradient(node.args[0])]
    if detached:
        raise UnsupportedError(
            "The model detaches its own arguments or state in place, which a bundle cannot repeat.",
            [Problem(source_line(node) or node.name, "calls detach_()") for node in detached],
            hint="Use detach() of it.",
        )


def _is_input_with_gradient(node: object) -> bool:
    if not isinstance(node, torch.fx.Node) or node.op not in ("placeholder", "get_attr"):
        return False
    value = node.meta.get("example_value", node.meta.get("val"))
    return bool(getattr(value, "requires_grad", True))


_OF_RECURRENT_LAYERS = ("._flat_weights", "._flat_weight_refs")
"""Lists of a recurrent layer's parameters, which torch makes again when a trace replaces the parameters."""


def with_dry_run(dry_run: repeat.DryRun, assigned: Set[str], joint: aot_autograd.Joint) -> aot_autograd.Joint:
    """Return a joint graph with what a dry run found, and with the buffers to which the model ``assigned``."""
    touched = dry_run.touched._replace(names=dry_run.touched.names | assigned)
    changed = tuple(name for name in dry_run.changed if not name.endswith(_OF_RECURRENT_LAYERS))
    return dataclasses.replace(joint, compares=dry_run.compares, touched=touched, side_effects=changed)


def lost(regions: checkpoints.Regions, joint: aot_autograd.Joint) -> tuple[str, ...]:
    """Return the user's lines of checkpoints that are missing from the joint graph."""
    return tuple(dict.fromkeys(source_lines.of_stack(stack) for stack in regions.lost(joint.graph_module.graph)))
