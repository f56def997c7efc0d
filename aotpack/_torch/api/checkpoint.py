"""Keeps activation checkpoints when a model is traced without Dynamo.

``torch.utils.checkpoint`` recomputes through saved-tensor hooks. A plain trace contains the
recomputation as a second copy of the forward's operations. AOTAutograd merges it with the first
copy, so the checkpoint is lost and everything is saved. While tracing, the operations of a
checkpoint are therefore tagged, as Dynamo does it, and the partitioner recomputes tagged
operations.

Uses private torch APIs; tried on the same releases as :mod:`aotpack._torch`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import operator
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
import torch.utils.checkpoint as checkpoint
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from .building import builds
from .counting import count_call
from .patching import constant, hooked, replaced_outside_torch

_NUMBER, _POLICY = "ac_graph_id", "recompute"
"""Keys of ``Node.meta`` that the partitioner reads: the number of a node's checkpoint, and its
recomputation policy.
"""


class ReentrantError(Exception):
    """A reentrant checkpoint differs from a non-reentrant one, which it is traced as."""


@dataclasses.dataclass(frozen=True)
class Checkpointed:
    """One call of ``checkpoint``.

    ``function``: what it runs. ``keeps_random_state``: whether it restores the random state.
    ``contexts``: its context function. ``torchs``: makes torch's own generator.
    """

    function: Any
    keeps_random_state: bool
    contexts: Callable[[], tuple[Any, Any]]
    torchs: Callable[[], Iterator[None]]


@contextlib.contextmanager
def checkpoints_replaced(generate: Callable[[Checkpointed], Iterator[None]]) -> Iterator[None]:
    """Let ``generate`` make the generator of each non-reentrant checkpoint.

    Torch 2.14 calls a function with another name and signature, and keeps the former for callers
    outside torch.
    """
    name = "_checkpoint_without_reentrant_generator_impl"
    name = name if hasattr(checkpoint, name) else "_checkpoint_without_reentrant_generator"
    torchs = getattr(checkpoint, name)
    signature = inspect.signature(torchs)

    @functools.wraps(torchs)  # its signature is then read where replacements are nested
    def generated(function: Any, *args: Any, **how: Any) -> Iterator[None]:
        count_call("aot-checkpoints")
        bound = signature.bind(function, *args, **how)
        bound.apply_defaults()
        keeps, contexts = bound.arguments["preserve_rng_state"], bound.arguments["context_fn"]
        return generate(Checkpointed(function, keeps, contexts, partial(torchs, function, *args, **how)))

    with hooked("aot-checkpoints", checkpoint, name, generated):
        yield


@dataclasses.dataclass
class Regions:
    """The checkpoints of one trace, numbered in order: the stack of each call, and the modes of
    selective ones.
    """

    stacks: dict[int, traceback.StackSummary] = dataclasses.field(default_factory=dict)
    modes: dict[int, TorchDispatchMode] = dataclasses.field(default_factory=dict)

    def lost(self, graph: torch.fx.Graph) -> list[traceback.StackSummary]:
        """The stacks of the checkpoints of which ``graph`` has no node."""
        kept = {node.meta.get(_NUMBER) for node in graph.nodes}
        return [stack for number, stack in self.stacks.items() if number not in kept]

    def run(self, called: Checkpointed) -> Iterator[None]:
        """Replaces torch's generator: operations that run between its two steps are tagged."""
        if not torch.is_grad_enabled():
            yield
            return
        forward, _ = called.contexts()
        if isinstance(forward, TorchDispatchMode):
            with self._tagged(forward):
                yield
        else:
            with forward, self._tagged(None):
                yield

    @contextlib.contextmanager
    def _tagged(self, mode: TorchDispatchMode | None) -> Iterator[None]:
        if get_proxy_mode() is None:
            yield
            return
        number = len(self.stacks) + 1
        self.stacks[number] = traceback.extract_stack()
        if mode is not None:
            mode.ac_graph_id = number  # type: ignore[attr-defined]
            self.modes[number] = mode
        tagged = {**fx_traceback.current_meta, _NUMBER: number, _POLICY: CheckpointPolicy.PREFER_RECOMPUTE}
        with constant("aot-checkpoints", fx_traceback, "current_meta", tagged):
            yield


class _Selective(TorchDispatchMode):
    """Applies the policy of a selective checkpoint to each operator while it is traced into the
    joint graph.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self, regions: Regions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._regions = regions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = self._regions.modes.get(fx_traceback.current_meta.get(_NUMBER, 0))
        if mode is None or get_proxy_mode() is None:
            return func(*args, **(kwargs or {}))
        return mode.__torch_dispatch__(func, types, args, kwargs)


class _Reentrant:
    """Replaces ``CheckpointFunction`` by a non-reentrant checkpoint if both mean the same;
    otherwise raises.
    """

    def __init__(self, *, needs_gradient: bool) -> None:
        self._needs_gradient = needs_gradient
        self._torchs: Callable[..., Any] = checkpoint.CheckpointFunction.apply

    def apply(self, function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if not builds():
            return self._torchs(function, preserve_rng_state, *args)
        if not torch.is_grad_enabled():
            return function(*args)
        if not any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
            if self._needs_gradient:
                raise ReentrantError(
                    "no argument of a reentrant checkpoint requires a gradient, so eager computes no gradients inside it; "
                    "pass use_reentrant=False"
                )
            with torch.no_grad():
                return function(*args)
        result = checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not leaf.requires_grad:
                raise ReentrantError(
                    "a reentrant checkpoint returns a result without a gradient, which eager marks as requiring one; "
                    "pass use_reentrant=False"
                )
        return result


@contextlib.contextmanager
def kept_checkpoints() -> Iterator[Regions]:
    """Tag the operations of checkpoints in this block, while a model is traced to an exported graph
    or to a joint graph.

    Raises:
        ReentrantError: eager would compute other gradients for the results of a reentrant
            checkpoint.
    """
    regions = Regions()
    with (
        checkpoints_replaced(regions.run),
        constant("aot-checkpoints", checkpoint, "CheckpointFunction", _Reentrant(needs_gradient=False)),
        fx_traceback.preserve_node_meta(),
    ):
        yield regions


class _Torchs:
    """Replaces torch_xla's ``CheckpointFunction`` by torch's, or by its replacement."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return checkpoint.CheckpointFunction.apply(function, preserve_rng_state, *args)


def torch_xla_checkpoints() -> contextlib.AbstractContextManager[Any]:
    """While the model runs, replace torch_xla's checkpoints, copies of torch's reentrant ones, by
    torch's.
    """
    module = sys.modules.get("torch_xla.utils.checkpoint")
    return contextlib.nullcontext() if module is None else replaced_outside_torch(module, "CheckpointFunction", _Torchs)


def selected(regions: Regions) -> contextlib.AbstractContextManager[Any]:
    """While the joint graph is traced, apply the policies of selective checkpoints."""
    return _Selective(regions)


@contextlib.contextmanager
def checked_reentrant() -> Iterator[None]:
    """While the model runs on fake tensors, reject reentrant checkpoints that differ from
    non-reentrant ones.

    Dynamo treats every reentrant checkpoint as a non-reentrant one.

    Raises:
        ReentrantError: says why.
    """
    with constant("aot-checkpoints", checkpoint, "CheckpointFunction", _Reentrant(needs_gradient=True)):
        yield


def checkpoint_nodes(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The checkpoints in a graph that Dynamo captured."""
    modules = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    target = torch.ops.higher_order.tag_activation_checkpoint
    return [node for part in modules for node in part.graph.find_nodes(op="call_function", target=target)]


def is_recomputed(node: torch.fx.Node) -> bool:
    """Whether ``node``, or the operator whose result it reads, belongs to a checkpoint."""
    return _NUMBER in node.meta or (node.target is operator.getitem and _NUMBER in node.args[0].meta)  # type: ignore[union-attr]


def is_tagged(graph: torch.fx.Graph) -> bool:
    """Whether any node has a recomputation policy."""
    return any(node.meta.get(_POLICY) is not None for node in graph.nodes)
