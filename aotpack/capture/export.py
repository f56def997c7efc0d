"""The second front end: non-strict ``torch.export``. It takes models that Dynamo rejects.

:mod:`.._torch.api.checkpoint` keeps their activation checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from .._torch.api import checkpoint as checkpoints
from .._torch.api import fake_tensors
from .._torch.api.node_lines import recorded_lines
from .._torch.fixes.applying import apply_fixes
from .._torch.refusals import lost_gradients
from .._torch.tracing import aot_autograd
from ..graph import source_line, views
from .dry_run import repeat
from .front_end_input import FrontEndInput, lost, observed_python, refuse_storage_changes, with_dry_run
from .functions import FunctionModule
from .inputs.examples import spelled_out


def traced(source: FrontEndInput) -> tuple[aot_autograd.Joint, tuple[str, ...]]:
    """Return the joint graph, and the user's lines whose checkpoints are missing from it."""
    model, args, kwargs = source.model, source.args, source.kwargs
    shapes = source.shapes
    if shapes.original is None and shapes.dims:
        raise ValueError("dynamic_shapes has no names of arguments, which this front end needs")
    for name, items in shapes.related().items():
        if not any((size.factor, size.offset) == (1, 0) for _, _, size in items):
            raise ValueError(f"no argument has the size {name!r}, from which others are derived; this front end needs one")
    if shapes.original is not None:
        _spell_out(model, kwargs)
    with observed_python(model) as assigned:
        dry_run = repeat.run_on_fake_tensors(model, args, kwargs)
        if dry_run.reads_nodes:
            raise lost_gradients.LostGradientError(
                "reads grad_fn of a tensor, where hooks may be registered; torch.export drops these"
            )
        # torch.export records source lines of modules only, so for a plain function they are recorded here.
        lines = recorded_lines("forward") if isinstance(model, FunctionModule) else contextlib.nullcontext()
        with checkpoints.kept_checkpoints() as regions, lost_gradients.kept_gradients(), lines, apply_fixes("export"):
            exported = torch.export.export(model, args, kwargs, dynamic_shapes=shapes.original, strict=False)
    refuse_storage_changes(exported.graph)
    mode, fake_args, fake_kwargs = fake_tensors.fake_inputs_of(exported, args, kwargs)
    with mode, checkpoints.selected(regions):
        joint = aot_autograd.export_joint(
            exported.module(check_guards=False), fake_args, fake_kwargs, source.decompositions, observe=source.returned.observe
        )
    # The exported module returns tuples for a torch.Size.
    source.returned.spec = aot_autograd.with_sizes(source.returned.spec, exported.call_spec.out_spec)
    _check_bounds(joint.graph_module.graph)
    return with_dry_run(dry_run, assigned, joint), lost(regions, joint)


def _spell_out(model: torch.nn.Module, kwargs: dict[str, Any]) -> None:
    """Give the model's ``forward`` a signature with named parameters in place of ``**rest``.

    ``torch.export`` finds no dynamic sizes for arguments in ``**rest``. The wrapper is set as an
    attribute of the instance.
    """
    forward = model.forward

    @functools.wraps(forward)
    def spelled(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    spelled.__signature__ = spelled_out(model, kwargs)  # type: ignore[attr-defined]
    model.forward = spelled


def _check_bounds(graph: torch.fx.Graph) -> None:
    """Refuse views that reach beyond an argument's storage.

    ``torch.export`` turns a growing ``resize_`` into such a view.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        source = views.root(node)
        if source.op == "placeholder" and views.reach(node) > views.reach(source):
            raise ValueError(f"{source_line(node) or node.name}: reads beyond the storage of an argument")
