"""The private torch APIs of random numbers and effects: what tracing, partitioning and Inductor do to them.

Tried on: torch 2.13.0, and 2.9.0 for portable and XLA bundles. Each function says what it wraps or puts right.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast
from unittest import mock

import torch
import torch._decomp.decompositions
import torch._inductor.config as inductor_config
from torch._dynamo.variables import user_defined
from torch._functorch import compile_utils, partitioners
from torch._higher_order_ops import effects
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch._inductor import comms, decomposition, ir, pattern_matcher
from torch._inductor.dependencies import WeakDep
from torch.fx import Node

from aotpack_loader.devices import generator

from .checkpoint import Checkpointed, checkpoints_replaced
from .fixes.applying import patched, reached
from .rules import Rule, ruled

RANDOM = torch.Tag.nondeterministic_seeded


def is_random(node: Node) -> bool:
    """Whether a node draws from the default generator. Attention is marked so by torch, and without dropout draws nothing."""
    return isinstance(node.target, torch._ops.OpOverload) and RANDOM in node.target.tags and _argument(node, "dropout_p") != 0


def _argument(node: Node, name: str) -> Any:
    """What is passed to an operator as its argument called ``name``, or None."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            return node.args[i] if i < len(node.args) else node.kwargs.get(name, argument.default_value)
    return None


def is_effectful(target: Any) -> bool:
    """Whether an operator is registered to do more than to return values."""
    return isinstance(target, torch._ops.OpOverload) and _effect(target) is not None


def _effect(target: torch._ops.OpOverload) -> Any:
    """What an operator is registered to do; a table of operators in torch 2.9."""
    table = getattr(effects, "SIDE_EFFECTS", None)
    return effects._get_effect(target) if table is None else table.get(target)


def is_fixed(target: Any) -> bool:
    """Whether an operator draws or has an effect: it stays where it is."""
    return isinstance(target, torch._ops.OpOverload) and (RANDOM in target.tags or _effect(target) is not None)


def in_backward(node: Node) -> bool:
    """Whether a node of a joint graph was traced in the backward: only what came before it is marked without exception."""
    return bool(node.meta.get("partitioner_tag") != "is_forward")


def keep_in_backward(node: Node) -> None:
    """Forbid the partitioner to compute a node in the forward, where it could: it needs no tangent."""
    node.meta["partitioner_tag"] = "must_be_in_backward"


class RandomStateError(Exception):
    """The model draws random numbers in a way that the graphs of a bundle cannot repeat."""


# ------------------------------------------------------------------ tracing


@contextlib.contextmanager
def traced_random(*, exact: bool) -> Iterator[None]:
    """Trace operators that draw into ones that draw the same; ``exact``: also those whose results nobody uses.

    Raises:
        RandomStateError: the model looks at the generator's state, or changes it.
    """
    rules: dict[Any, Rule] = {torch.ops.aten.dropout.default: _dropout}
    if exact:
        rules[torch.ops.aten.bernoulli_.float] = _bernoulli_in_place
    with (
        _no_fresh_recomputation() if exact else contextlib.nullcontext(),
        ruled(rules),
        mock.patch.object(torch.random, "default_generator", _Watched(torch.default_generator)),
        mock.patch.object(user_defined, "RandomValueSource", _refuse_traced_draw),
        inductor_config.patch(fallback_random=exact or inductor_config.fallback_random),
    ):
        yield


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
    """As eager, which draws nothing where nothing or everything is dropped; torch's rule draws, and clones what is kept whole."""
    if not train or p == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    return cast(torch.Tensor, torch.ops.aten.native_dropout(x, p, train)[0])


def _bernoulli_in_place(x: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """The functional form of ``bernoulli_`` fills a contiguous tensor; eager's order of drawing is that of the memory."""
    if generator is not None or x.is_contiguous():
        return x.copy_(torch.ops.aten.bernoulli.p(x.detach(), p, generator=generator))
    mask = torch.ops.aten.native_dropout(torch.zeros_like(x, dtype=torch.float32), 1 - p, True)[1]
    return x.copy_(mask)


def dropout_between_layers() -> contextlib.AbstractContextManager[Any]:
    """Draw the dropout between recurrent layers, which torch's decomposition forgets."""
    return patched("decomposition-dropout-of-recurrent-layers", torch._decomp.decompositions, "_rnn_helper", _rnn_with_dropout)


_rnn_without_dropout: Rule = torch._decomp.decompositions._rnn_helper


def _rnn_with_dropout(
    x: Any, hidden: Any, params: Any, has_biases: bool, layers: int, dropout: float, train: bool, *rest: Any
) -> Any:
    """torch's decomposition of recurrent layers forgets the dropout between them (``num_layers < i - 1``)."""
    *flags, layer_function = rest
    last: list[Any] = []

    def layer(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not last:
            last[:] = [x, x]
        elif x is not last[0]:  # not the other direction of the same layer
            last[:] = [x, torch.dropout(x, dropout, True)]
        return layer_function(last[1], *args, **kwargs)

    chosen = layer if dropout and train else layer_function
    return _rnn_without_dropout(x, hidden, params, has_biases, layers, 0.0, train, *flags, chosen)


class _Watched:
    """The default generator as ``torch.random`` sees it: refuses the model, and serves torch itself."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        if _asked_by_the_model():
            raise RandomStateError(
                f"the model uses the random state itself ({name} of the default generator), which a bundle cannot repeat: "
                "seed before the call"
            )
        return getattr(self._generator, name)


def _asked_by_the_model() -> bool:
    """Whether the innermost frame, past this module, ``torch.random`` and wrappers, is outside torch or of a captured graph."""
    passed = (__name__, "torch.random", "contextlib", "torch.utils._contextlib", "torch._compile", "torch._dynamo.eval_frame")
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in passed:
        frame = frame.f_back
    caller = str(frame.f_globals.get("__name__"))
    return not caller.startswith("torch.") or caller.startswith("torch.fx.")


@contextlib.contextmanager
def _no_fresh_recomputation() -> Iterator[None]:
    """Refuse checkpoints told not to keep the random state: eager computes again with other numbers."""
    tag: Rule = TagActivationCheckpoint.__call__

    def check(preserve_rng_state: bool) -> None:
        if not preserve_rng_state:
            raise RandomStateError(
                "checkpoint(preserve_rng_state=False) draws other numbers when it computes again, which a bundle never does"
            )

    def generated(called: Checkpointed) -> Iterator[None]:
        if not str(getattr(called.function, "__module__", "")).startswith("torch."):  # torch's own runs what Dynamo captured
            check(called.keeps_random_state)
        return called.torchs()

    def tagged(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(kwargs.get("preserve_rng_state", True))
        return tag(self, *args, **kwargs)

    with (
        checkpoints_replaced(generated),
        mock.patch.object(TagActivationCheckpoint, "__call__", tagged),
    ):
        yield


def _refuse_traced_draw(index: int) -> None:
    """In place of Dynamo's source of a number drawn by ``random``, which becomes a constant."""
    raise RandomStateError(_DRAWS.format("random"))


@contextlib.contextmanager
def no_python_random() -> Iterator[None]:
    """Run the model's Python while refusing draws from ``random`` and ``numpy.random``: they would become constants.

    Raises:
        RandomStateError: a number was drawn.
    """
    numpy = sys.modules.get("numpy")
    modules = [random] if numpy is None else [random, numpy.random]
    before = _python_states(modules)
    try:
        with contextlib.ExitStack() as stack:
            for module in modules:
                for name, function in vars(module).items():
                    if callable(function) and not isinstance(function, type) and name[0] != "_":
                        stack.enter_context(mock.patch.object(module, name, _refused(f"{module.__name__}.{name}", function)))
            yield
    finally:  # the reason of whatever else went wrong
        if _python_states(modules) != before:
            raise RandomStateError(f"the model {_DRAWS.format(' or '.join(m.__name__ for m in modules))}")


_DRAWS = "draws from Python's {}: in a bundle the number would be the same at every call; use torch's random functions"


def _refused(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if caller.partition(".")[0] not in ("torch", "numpy", "sympy", "random"):
            raise RandomStateError(_DRAWS.format(name))
        return function(*args, **kwargs)

    return call


def _python_states(modules: list[Any]) -> list[str]:
    return [repr(m.getstate() if m is random else m.get_state(legacy=False)) for m in modules]


# ------------------------------------------------------------------ partitioning


@contextlib.contextmanager
def partitioned_random(joint: torch.fx.GraphModule) -> Iterator[None]:
    """Partition so that no draw is merged with another, and what is computed again is left to us.

    The partitioner's list of operators that must not be merged lacks most of those that draw, and it hands over the generator's
    state only to what was marked for recomputation.
    """
    graphs = [module.graph for module in joint.modules() if isinstance(module, torch.fx.GraphModule)]
    drawing = {node.target.overloadpacket for graph in graphs for node in graph.nodes if is_random(node)}
    with (
        mock.patch.object(compile_utils, "rand_ops", [*compile_utils.rand_ops, *drawing]),
        patched(
            "partitioner-draws",
            partitioners,
            "functionalize_rng_ops",
            lambda joint, forward, backward, symbols: (forward, backward),
        ),
    ):
        yield


# ------------------------------------------------------------------ Inductor


def call_generator_operators(graph: torch.fx.Graph) -> None:
    """Put operators, which Inductor can trace and compiled code can call, in the place of the format's built-ins on the state."""
    for node in graph.nodes:
        if node.target is generator.random_state:
            node.target, node.args = _generator_operators().random_state.default, (node.meta["val"].numel(),)
        elif node.target is generator.exchange_random_state:
            node.target = _generator_operators().exchange_random_state.default


@cache
def _generator_operators() -> Any:
    library = generator.register()
    torch.library.register_fake("aotpack::random_state", lambda size: torch.empty(size, dtype=torch.uint8), lib=library)
    torch.library.register_fake("aotpack::exchange_random_state", torch.empty_like, lib=library)
    return torch.ops.aotpack


@contextlib.contextmanager
def draws_matched_by_no_pattern() -> Iterator[None]:
    """Let no pattern take what draws or has an effect: it is merged with another draw, or moved."""
    with patched("inductor-draws-in-patterns", pattern_matcher, "is_match", _matches_fixed):
        yield


@contextlib.contextmanager
def draws_in_order(module: torch.fx.GraphModule) -> Iterator[None]:
    """Run what draws or has an effect in the order of the graph, each once, used or not."""
    local = inductor_config.reorder_for_locality and not _has_effects(module)
    order = _in_order(comms.decide_global_ordering_of_comms)
    with (
        inductor_config.patch(reorder_for_locality=local),
        patched("inductor-order-of-draws", comms, "decide_global_ordering_of_comms", order),
        mock.patch.object(ir.InplaceBernoulliFallback, "has_side_effects", _always, create=True),
    ):
        yield


@contextlib.contextmanager
def bernoulli_of_its_own() -> Iterator[None]:
    """Leave out the one decomposition that draws otherwise than its operator, even with ``fallback_random``."""
    with mock.patch.dict(decomposition.decompositions):
        decomposition.decompositions.pop(torch.ops.aten.bernoulli.default, None)
        reached("inductor-bernoulli-draws")
        yield


def _has_effects(module: torch.fx.GraphModule) -> bool:
    return any(is_effectful(node.target) for node in module.graph.nodes)


def _always(self: Any) -> bool:
    return True


def _matches_fixed(match: Any) -> bool:
    """Whether a pattern matches; none may take what is to stay where it is."""
    return bool(match) and not any(is_fixed(node.target) for node in match.nodes)


def _in_order(schedule: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Where the scheduler fixes the order of collectives, before it moves anything: that of draws and effects too.

    Inductor's own chain of random operators hangs on their results, and breaks where nobody uses one.
    """

    def ordered(nodes: list[Any], *args: Any) -> list[Any]:
        fixed = [node for node in nodes if is_fixed(getattr(node.node, "op_overload", None))]
        for earlier, later in itertools.pairwise(fixed):
            written = next(iter(later.get_buffer_names()))
            for name in earlier.get_buffer_names():
                later.add_fake_dep(WeakDep(name, mutating_buf=written, is_fake=True))
        return schedule(nodes, *args)

    return ordered
