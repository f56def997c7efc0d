"""Calls in native code: selects the methods that the target's call library can call, and describes them to it.

Native code does the same as :mod:`.call`, for simple methods and ordinary calls. Everything else
stays in Python. Native code reports no errors about arguments. If a call does not fit it returns
None before anything has run.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ..devices.aoti import AotiExecutable, AotiSequence
from ..devices.call_library import SWITCH, CallLibrary, NativeCall, OpenedCode, Slots
from ..devices.call_sizes import SpecializedNativeCalls, make
from ..errors import AutogradError, Problem
from ..format import schema
from ..format.native_call import Refusal, encode
from ..format.traits import Trait, unsupported
from .call import MethodCall
from .identity import Pattern
from .native_document import describe
from .result_sources import between_error, has_hooks_of_caller, of_method, pairs_of_outputs
from .views import Kept, replayer, shared_values, with_origins

_AROUND: Final = frozenset({Trait.COMPARES_ARGUMENTS, Trait.FROM_START, Trait.VIEWS})
"""Traits for which Python does something before or after a native call."""

SUPPORTED: Final = _AROUND | {
    Trait.OTHER_CONTAINERS,
    Trait.NESTED_ARGUMENTS,
    Trait.UNREAD_SIZES_OF_DATA,
    Trait.WRITES_TO_ARGUMENTS,
    Trait.WRITES_WITH_GRADIENTS,
    Trait.RETURNS_ARGUMENTS,
    Trait.NUMBERS,
}
"""What a method that native code calls may have."""


def use(call: MethodCall, library: CallLibrary) -> str:
    """Let ``library`` call a method, if it can. Returns ``native``, or ``python`` and the reason."""
    if found := obstacle(call, library):
        return f"python: {found}"
    library.on_refusal(refuse, has_hooks_of_caller)
    document = describe(call)
    call.native = make(library.read(encode(document)), opened_codes(call), [call.constants[name] for name in document.constants])
    if not is_whole(call):
        call.native = NativeCallWithChecks(call, call.native)
    return "native"


def opened_codes(call: MethodCall) -> dict[str, OpenedCode]:
    """What the names in a call's document stand for."""
    graphs: dict[str, Any] = {f"{call.name}.forward": call.forward}
    if call.differentiable is not None:
        graphs[f"{call.name}.backward"] = call.differentiable.backward
    found: dict[str, OpenedCode] = {}
    for name, graph in graphs.items():
        for part, code in (graph.parts if isinstance(graph, AotiSequence) else {name: graph}).items():
            found[part] = OpenedCode(code.run, code.fail) if isinstance(code, AotiExecutable) else OpenedCode(code)
    return found


def is_whole(call: MethodCall) -> bool:
    """Whether native code makes the whole call of a method that it can call: Python adds no check and no view."""
    return call.traits.isdisjoint(_AROUND) and pairs_of_outputs(call.method) is not None


def _from_start(method: schema.Method) -> list[int]:
    """The arguments that must begin their storage."""
    return [i for i, leaf in enumerate(method.leaves) if isinstance(leaf, schema.TensorLeaf) and leaf.from_start]


class NativeCallWithChecks:
    """A native call with what Python does before and after it.

    Before: it compares arguments by ``is``, and looks at their storage. After: it makes the results
    that are views, from their bases, and watches the results, as a call in Python does.
    """

    def __init__(self, call: MethodCall, native: NativeCall) -> None:
        self._native = native
        self._pattern: Pattern | None = call.inputs.pattern if call.method.identical or call.method.distinct else None
        self._from_start = _from_start(call.method)
        results = with_origins(call.method.results)
        wanted = shared_values(results)
        self._replays = [
            (i, replayer(i, result, wanted)) for i, result in enumerate(results) if isinstance(result, schema.AliasResult)
        ]
        self._watch = of_method(call.method) if pairs_of_outputs(call.method) is None else None

    def __call__(self, leaves: Sequence[Any], slots: Slots) -> list[Any] | None:
        """Make the call; None if Python must make it, which then may reject it."""
        if self._pattern is not None:
            problems: list[Problem] = []
            self._pattern.check(leaves, problems)
            if problems:
                return None
        for i in self._from_start:
            if not isinstance(leaves[i], torch.Tensor) or leaves[i].storage_offset():
                return None
        environment = self._native.environment(leaves) if isinstance(self._native, SpecializedNativeCalls) else {}
        results = self._native(leaves, slots)
        if results is None:
            return None
        kept: Kept = {}
        for i, replay in self._replays:
            results[i] = replay(results[i], environment, kept)
        if self._watch is not None:
            self._watch(results)
        return results


def obstacle(call: MethodCall, library: CallLibrary) -> str:
    """The reason why native code cannot call a method, and what to change for it; or an empty string."""
    graphs: list[Any] = [call.forward] if call.differentiable is None else [call.forward, call.differentiable.backward]
    if call.checks is not None:
        return "check='full' looks at every call; load without it"
    if not all(graph.returns_tensors for graph in graphs):
        return "its graphs return numbers; return tensors, not item()"
    if any(_is_short(graph, library) for graph in graphs):
        return "its code returns fewer values than its target uses; build again"
    return unsupported(call.traits, SUPPORTED)


def _is_short(graph: Any, library: CallLibrary) -> bool:
    if isinstance(graph, AotiSequence):
        return any(_is_short(part, library) for part in graph.parts.values())
    return isinstance(graph, AotiExecutable) and library.outputs(graph.run) <= max(graph.positions[1], default=-1)


def refuse(reason: int, names: list[str], gradient: torch.Tensor | None) -> None:
    """Raise the same error as the Python path does in a backward. The library calls this."""
    from .refused_gradients import batched_gradient_error, changed_error, graph_freed_error, higher_order_error

    errors: dict[Refusal, Callable[..., AutogradError]] = {
        Refusal.SECOND_DERIVATIVE: lambda: higher_order_error("first"),
        Refusal.RELEASED: graph_freed_error,
        Refusal.COMPILED_AUTOGRAD: _called_outside,
        Refusal.UNREADABLE_GRADIENT: batched_gradient_error,
        Refusal.DERIVED_OUTPUT: between_error,
        Refusal.CHANGED_IN_PLACE: changed_error,
    }
    raise errors[Refusal(reason)](*names)


def _called_outside() -> AutogradError:
    """The error for compiled autograd that is enabled between a call and its backward."""
    return AutogradError(
        "Compiled autograd runs the backward of a call that was made outside it, in native code.",
        hint=f"Turn compiled autograd on before the call, or set {SWITCH}=0 before the bundle is loaded.",
    )
