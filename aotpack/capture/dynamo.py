"""The first front end: Dynamo.

It keeps activation checkpoints and the caller's order of arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree

from .._torch.api import checkpoint as checkpoints
from .._torch.api import fake_tensors, inference, writes
from .._torch.api.random_operators import draws_in_subgraphs
from .._torch.api.shape_env import fixed_sizes
from .._torch.tracing import aot_autograd, dynamo, fake_run
from ..graph import source_line
from .dry_run import repeat
from .front_end_input import FrontEndInput, fake_example, refuse_storage_changes
from .loops.any_length import captured_for_any_length
from .loops.carries import copy_captured_carries
from .loops.rolled import LEAST, roll
from .own_data import drop_assignments_of_own_data
from .size_caches import captured_without_kept


class _UnrollableError(Exception):
    """A graph whose loops were rolled to scans cannot be traced."""


def traced(source: FrontEndInput) -> tuple[aot_autograd.Joint, tuple[str, ...]]:
    """Return the joint graph, and the user's lines whose checkpoints it does not recompute."""
    try:
        return _traced(source, rolls=True)
    except _UnrollableError:
        return _traced(source, rolls=False)


def _traced(source: FrontEndInput, *, rolls: bool) -> tuple[aot_autograd.Joint, tuple[str, ...]]:
    model, args, kwargs = source.model, source.args, source.kwargs
    with fake_tensors.marked_dynamic(source.shapes.of_tensors(args, kwargs)):
        captured = _set_up_and_captured(model, args, kwargs)
        if fixed := fixed_sizes(captured.meta["fake_mode"]):
            captured = captured_without_kept(model, args, kwargs, fixed) or captured
        of_any_length = captured_for_any_length(source, fixed_sizes(captured.meta["fake_mode"])) if rolls else None
        captured = of_any_length or captured
        _refuse_assumed_layouts(captured)
        inference.without_inference(captured)
        drop_assignments_of_own_data(captured.graph)
        copy_captured_carries(captured)
        refuse_storage_changes(captured.graph)
        nodes = checkpoints.checkpoint_nodes(captured) if torch.is_grad_enabled() else []
        if any(node.kwargs.get("use_reentrant") for node in nodes):
            with checkpoints.checked_reentrant():
                fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), model, args, kwargs)
        rolled = of_any_length is not None or (rolls and roll(captured, LEAST) > 0)
        try:
            joint = _joint(captured, source, with_own_shapes=of_any_length is not None)
        except Exception as error:
            if rolled:
                raise _UnrollableError from error
            raise
        if rolled and draws_in_subgraphs(joint.graph_module):  # each iteration draws its own numbers
            raise _UnrollableError
        if joint.side_effects:
            repeat.check_repeats(model, args, kwargs)
        if joint.metadata.mutated_inp_runtime_indices or writes.may_move_versions(captured.graph):
            joint = dataclasses.replace(joint, touched=_touched(captured, args, kwargs))
    looked_through = [] if checkpoints.is_tagged(joint.graph_module.graph) else nodes
    return joint, tuple(dict.fromkeys(source_line(node) for node in looked_through))


def _joint(captured: torch.fx.GraphModule, source: FrontEndInput, *, with_own_shapes: bool) -> aot_autograd.Joint:
    """The joint graph of a capture. ``with_own_shapes``: the sizes that vary are not those of the capture."""
    args, kwargs = source.args, source.kwargs
    contexts: contextlib.AbstractContextManager[Any] = dynamo.dynamo_contexts(captured)
    if with_own_shapes:
        contexts, args, kwargs = fake_example(source)
    with contexts, _named_control_flow(captured.graph), _lines_of_outputs(captured.graph):
        return aot_autograd.export_joint(captured, args, kwargs, source.decompositions, observe=source.returned.observe)


def _touched(captured: torch.fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fake_run.VersionedWrites | None:
    """Return whose version counters the captured graph moves.

    None if the graph does not run on fake tensors. A graph without inputs moves none, and torch's code
    for it does not run: it uses a name (``_fn_args``) that only graphs with inputs define.
    """
    if not captured.graph.find_nodes(op="placeholder"):
        return fake_run.VersionedWrites(frozenset(), frozenset())
    try:
        return fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), captured, args, kwargs).touched
    except Exception:  # the graph may depend on data; then every write is assumed to move a counter
        return None


def _set_up_and_captured(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
    """Capture the model with Dynamo.

    If Dynamo meets a lock, run the model once on fake tensors and capture again. Code that a first
    call runs to set something up is often behind a lock, and Dynamo cannot enter locks.
    """
    try:
        return dynamo.capture_with_dynamo(model, args, kwargs)
    except torch._dynamo.exc.Unsupported as error:
        if "`lock`" not in str(error):
            raise
    fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), model, args, kwargs, strict=False)
    return dynamo.capture_with_dynamo(model, args, kwargs)


def _refuse_assumed_layouts(captured: torch.fx.GraphModule) -> None:
    if calls := dynamo.assumes_layouts(captured):
        lines = ", ".join(source_line(call) or call.name for call in calls)
        raise ValueError(f"{lines}: the backward of an autograd.Function reads the strides of its gradient, which Dynamo assumes")


@contextlib.contextmanager
def _named_control_flow(graph: torch.fx.Graph) -> Iterator[None]:
    """Add the user's lines of control flow to errors.

    Errors raised while it is differentiated have no line of the user's.
    """
    try:
        yield
    except Exception as error:
        calls = [node for node in graph.nodes if isinstance(node.target, torch._ops.HigherOrderOperator)]
        for line in dict.fromkeys(source_line(call) for call in calls):
            error.add_note(line)
        raise


@contextlib.contextmanager
def _lines_of_outputs(graph: torch.fx.Graph) -> Iterator[None]:
    """Add the user's lines to an error that names outputs by position."""
    try:
        yield
    except aot_autograd.AliasedOutputsError as error:
        nodes = pytree.tree_leaves(graph.output_node().args)
        found = [nodes[position] if position < len(nodes) else None for position in error.positions]
        lines = [source_line(node) if isinstance(node, torch.fx.Node) else "" for node in found]
        error.paths = [line or path for line, path in zip(lines, error.paths, strict=True)]
        raise
