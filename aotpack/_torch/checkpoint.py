"""Activation checkpoints while tracing without Dynamo. Private torch, as in :mod:`aotpack._torch`, tried on the same releases.

``torch.utils.checkpoint`` recomputes through saved-tensor hooks. Traced as it is, the recomputation becomes a second copy of the
forward's operations, which AOTAutograd merges with the first: the checkpoint is looked through, and everything is saved. So
while tracing, what a checkpoint runs is tagged, as Dynamo's path does, and the partitioner recomputes what is tagged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
import torch.utils.checkpoint as checkpoint
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

_NUMBER, _POLICY = "ac_graph_id", "recompute"
"""Keys of ``Node.meta`` that the partitioner reads: which checkpoint a node belongs to, and what is to become of it."""


class ReentrantError(Exception):
    """A reentrant checkpoint means something else than the other kind, by which it is traced."""


@dataclasses.dataclass(frozen=True)
class Checkpointed:
    """One call of ``checkpoint``: what it runs, whether it keeps the random state, its contexts, and torch's own generator."""

    function: Any
    keeps_random_state: bool
    contexts: Callable[[], tuple[Any, Any]]
    torchs: Callable[[], Iterator[None]]


@contextlib.contextmanager
def checkpoints_replaced(generate: Callable[[Checkpointed], Iterator[None]]) -> Iterator[None]:
    """Have ``generate`` make the generator of each checkpoint that is not reentrant.

    Torch 2.14 calls a function of another name and signature, and keeps the former for callers outside torch.
    """
    name = "_checkpoint_without_reentrant_generator_impl"
    name = name if hasattr(checkpoint, name) else "_checkpoint_without_reentrant_generator"
    torchs = getattr(checkpoint, name)
    signature = inspect.signature(torchs)

    def generated(function: Any, *args: Any, **how: Any) -> Iterator[None]:
        given = signature.bind(function, *args, **how)
        given.apply_defaults()
        keeps, contexts = given.arguments["preserve_rng_state"], given.arguments["context_fn"]
        return generate(Checkpointed(function, keeps, contexts, partial(torchs, function, *args, **how)))

    with mock.patch.object(checkpoint, name, generated):
        yield


@dataclasses.dataclass
class Regions:
    """The checkpoints met in one trace, numbered in order: where each was called, and the mode of a selective one."""

    stacks: dict[int, traceback.StackSummary] = dataclasses.field(default_factory=dict)
    modes: dict[int, TorchDispatchMode] = dataclasses.field(default_factory=dict)

    def lost(self, graph: torch.fx.Graph) -> list[traceback.StackSummary]:
        """Where the checkpoints were called of which ``graph`` has no node."""
        kept = {node.meta.get(_NUMBER) for node in graph.nodes}
        return [stack for number, stack in self.stacks.items() if number not in kept]

    def run(self, called: Checkpointed) -> Iterator[None]:
        """In place of torch's generator: what runs between its two steps is tagged."""
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
        before = fx_traceback.current_meta
        fx_traceback.current_meta = {**before, _NUMBER: number, _POLICY: CheckpointPolicy.PREFER_RECOMPUTE}
        try:
            yield
        finally:
            fx_traceback.current_meta = before


class _Selective(TorchDispatchMode):
    """Asks the policy of a selective checkpoint about each operator, as it is traced into the joint graph."""

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
    """In place of ``CheckpointFunction``: the other kind of checkpoint, where that means the same."""

    def __init__(self, *, needs_gradient: bool) -> None:
        self._needs_gradient = needs_gradient

    def apply(self, function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*args)
        if not any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
            if self._needs_gradient:
                raise ReentrantError(
                    "none of the arguments of a reentrant checkpoint requires a gradient, so eager cuts the gradient of what it "
                    "computes; pass use_reentrant=False"
                )
            with torch.no_grad():
                return function(*args)
        result = checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not leaf.requires_grad:
                raise ReentrantError(
                    "a reentrant checkpoint computes a result without a gradient, which eager says requires one; "
                    "pass use_reentrant=False"
                )
        return result


@contextlib.contextmanager
def kept_checkpoints() -> Iterator[Regions]:
    """Tag what checkpoints run while something is traced within, first to an exported graph or at once to a joint graph.

    Raises:
        ReentrantError: a reentrant checkpoint whose results eager would give other gradients.
    """
    regions = Regions()
    with (
        checkpoints_replaced(regions.run),
        mock.patch.object(checkpoint, "CheckpointFunction", _Reentrant(needs_gradient=False)),
        fx_traceback.preserve_node_meta(),
    ):
        yield regions


class _Torchs:
    """In place of torch_xla's ``CheckpointFunction``: torch's, or what stands there."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return checkpoint.CheckpointFunction.apply(function, preserve_rng_state, *args)


def torch_xla_checkpoints() -> contextlib.AbstractContextManager[Any]:
    """While the model runs: torch_xla's checkpoints are torch's reentrant ones, of which they are a copy for its devices."""
    module = sys.modules.get("torch_xla.utils.checkpoint")
    return contextlib.nullcontext() if module is None else mock.patch.object(module, "CheckpointFunction", _Torchs)


def selected(regions: Regions) -> contextlib.AbstractContextManager[Any]:
    """Around the trace of the joint graph: follows the policies of selective checkpoints."""
    return _Selective(regions)


@contextlib.contextmanager
def checked_reentrant() -> Iterator[None]:
    """While the model runs on fake tensors: refuse reentrant checkpoints that are no others, for Dynamo takes them as such.

    Raises:
        ReentrantError: says why.
    """
    with mock.patch.object(checkpoint, "CheckpointFunction", _Reentrant(needs_gradient=True)):
        yield


def checkpoint_nodes(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Checkpoints in a graph that Dynamo captured."""
    modules = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    target = torch.ops.higher_order.tag_activation_checkpoint
    return [node for part in modules for node in part.graph.find_nodes(op="call_function", target=target)]


def is_recomputed(node: torch.fx.Node) -> bool:
    """Whether ``node``, or the operator whose result it is one of, belongs to a checkpoint."""
    return _NUMBER in node.meta or (node.target is operator.getitem and _NUMBER in node.args[0].meta)  # type: ignore[union-attr]


def is_tagged(graph: torch.fx.Graph) -> bool:
    """Whether any node is to be recomputed."""
    return any(node.meta.get(_POLICY) is not None for node in graph.nodes)
