"""Keeps random numbers and effects right while a model is traced, partitioned and compiled.

Each function says what it wraps or fixes.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
import torch._decomp.decompositions
import torch._inductor.config as inductor_config
from torch._dynamo.variables import user_defined
from torch._higher_order_ops.wrap import TagActivationCheckpoint

from aotpack_loader.devices import generator

from ..api.building import builds
from ..api.checkpoint import Checkpointed, checkpoints_replaced
from ..api.dispatch_rules import Rule, ruled
from ..api.patching import caller, constant, hooked, replaced_outside_torch


class RandomStateError(Exception):
    """The model draws random numbers in a way that a bundle's graphs cannot repeat."""


# ------------------------------------------------------------------ tracing


@contextlib.contextmanager
def traced_random(*, exact: bool) -> Iterator[None]:
    """Trace random operators so that the graph draws the same numbers; ``exact``: also those with
    unused results.

    Raises:
        RandomStateError: the model reads or changes the generator's state.
    """
    rules: dict[Any, Rule] = {torch.ops.aten.dropout.default: _dropout}
    if exact:
        rules[torch.ops.aten.bernoulli_.float] = _bernoulli_in_place
    with (
        _no_fresh_recomputation() if exact else contextlib.nullcontext(),
        ruled(rules),
        constant("dynamo-random-numbers", torch.random, "default_generator", _Watched(torch.default_generator)),
        hooked("dynamo-random-numbers", user_defined, "RandomValueSource", _refuse_traced_draw),
        inductor_config.patch(fallback_random=exact or inductor_config.fallback_random),
    ):
        yield


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
    """Dropout as in eager, which draws nothing for ``p`` of 0 or 1; torch's rule draws, and clones
    an unchanged input.
    """
    if not train or p == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    return cast(torch.Tensor, torch.ops.aten.native_dropout(x, p, train)[0])


def _bernoulli_in_place(x: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """The functional form of ``bernoulli_`` fills a contiguous tensor; eager draws in the order of
    memory.
    """
    if generator is not None or x.is_contiguous():
        return x.copy_(torch.ops.aten.bernoulli.p(x.detach(), p, generator=generator))
    mask = torch.ops.aten.native_dropout(torch.zeros_like(x, dtype=torch.float32), 1 - p, True)[1]
    return x.copy_(mask)


class _Watched:
    """The default generator for ``torch.random``: rejects uses by the model, and allows uses by
    torch itself.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        if builds() and _is_called_by_the_model():
            raise RandomStateError(
                f"the model reads or sets the state of the default generator ({name}), which a bundle cannot repeat; "
                "seed it before the call"
            )
        return getattr(self._generator, name)


def _is_called_by_the_model() -> bool:
    """Whether the caller is the model: its frame, past this module and wrappers, is outside torch and
    this compiler, or in a captured graph.
    """
    passed = (__name__, "torch.random", "contextlib", "torch.utils._contextlib", "torch._compile", "torch._dynamo.eval_frame")
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in passed:
        frame = frame.f_back
    caller = str(frame.f_globals.get("__name__"))
    return not caller.startswith(("torch.", "aotpack.")) or caller.startswith("torch.fx.")


@contextlib.contextmanager
def _no_fresh_recomputation() -> Iterator[None]:
    """Reject checkpoints with ``preserve_rng_state=False``: eager recomputes them with other random
    numbers.
    """
    tag: Rule = TagActivationCheckpoint.__call__

    def check(preserve_rng_state: bool) -> None:
        if not preserve_rng_state:
            raise RandomStateError(
                "checkpoint(preserve_rng_state=False) draws other numbers when it recomputes; a bundle draws each number once"
            )

    def generated(called: Checkpointed) -> Iterator[None]:
        if not str(getattr(called.function, "__module__", "")).startswith("torch."):  # torch's own run Dynamo's captured graph
            check(called.keeps_random_state)
        return called.torchs()

    def tagged(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(kwargs.get("preserve_rng_state", True))
        return tag(self, *args, **kwargs)

    with (
        checkpoints_replaced(generated),
        hooked("dynamo-random-numbers", TagActivationCheckpoint, "__call__", tagged),
    ):
        yield


def _refuse_traced_draw(index: int) -> None:
    """Replaces Dynamo's source of a number from ``random``, which would become a constant."""
    raise RandomStateError(_DRAWS.format("random"))


@contextlib.contextmanager
def no_python_random() -> Iterator[None]:
    """Reject draws from ``random`` and ``numpy.random`` while the model's Python runs: they would
    become constants.

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
                        stack.enter_context(replaced_outside_torch(module, name, _refused(f"{module.__name__}.{name}", function)))
            yield
    finally:  # a draw may be the cause of any other error
        if _python_states(modules) != before:
            others = ", or another thread drew from it meanwhile" if threading.active_count() > 1 else ""
            raise RandomStateError(f"the model {_DRAWS.format(' or '.join(m.__name__ for m in modules))}{others}")


_COMPILED = "calls what torch.compile made (or random.getstate): build from the model as it was before torch.compile"
_DRAWS = "draws from Python's {}: a bundle would use the same number at every call; use torch's random functions"


def _refused(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        origin = str(caller().f_globals.get("__name__"))
        if origin.partition(".")[0] not in ("torch", "numpy", "sympy", "random"):
            raise RandomStateError(_COMPILED if name == "random.getstate" else _DRAWS.format(name))
        return function(*args, **kwargs)

    return call


def _python_states(modules: list[Any]) -> list[str]:
    return [repr(m.getstate() if m is random else m.get_state(legacy=False)) for m in modules]


# ------------------------------------------------------------------ partitioning


# ------------------------------------------------------------------ Inductor


def call_generator_operators(graph: torch.fx.Graph) -> None:
    """Replace the format's built-ins for the generator state by operators that Inductor can trace
    and compiled code can call.
    """
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
