"""Calls in native code: selects the methods that the target's call library can call, and describes them to it.

Native code does the same as :mod:`.call`, for simple methods and ordinary calls. Everything else
stays in Python. Native code reports no errors about arguments. If a call does not fit it returns
None before anything has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from ..devices.aoti import AotiExecutable, AotiSequence
from ..devices.call_library import SWITCH, CallLibrary, NativeCall, Slots
from ..devices.call_sizes import BySizes, make
from ..devices.literals import literal
from ..errors import AutogradError, Problem
from ..format import schema
from ..format.traits import Trait, unsupported
from .autograd import Differentiable
from .call import MethodCall
from .identity import Memory, Pattern
from .inputs import TensorCheck
from .result_sources import between_error, has_hooks_of_caller, of_method, pairs_of_outputs
from .views import Kept, replayer, shared_values, with_origins

BETWEEN: Final = "between results: "
"""Begins the reason for refusing a gradient between two results. Their paths follow, one a line."""

CHANGED: Final = "changed in place: "
"""Begins the reason for refusing a backward whose saved tensor was changed. Its name follows."""

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
    library.on_refusal(refuse)
    call.native = make(describe(call), library, sizes_of(call))
    if not is_whole(call):
        call.native = Around(call, call.native)
    return "native"


def is_whole(call: MethodCall) -> bool:
    """Whether native code makes the whole call of a method that it can call: Python adds no check and no view."""
    return call.traits.isdisjoint(_AROUND) and pairs_of_outputs(call.method) is not None


def _from_start(method: schema.Method) -> list[int]:
    """The arguments that must begin their storage."""
    return [i for i, leaf in enumerate(method.leaves) if isinstance(leaf, schema.TensorLeaf) and leaf.from_start]


class Around:
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
        environment = self._native.environment(leaves) if isinstance(self._native, BySizes) else {}
        results = self._native(leaves, slots)
        if results is None:
            return None
        kept: Kept = {}
        for i, replay in self._replays:
            results[i] = replay(results[i], environment, kept)
        if self._watch is not None:
            self._watch(results)
        return results


def sizes_of(call: MethodCall) -> tuple[list[Any], list[str]]:
    """Which arguments give a method's symbols, and what these must satisfy; see :class:`.BySizes`."""
    binds = [
        (i, len(check.leaf.shape), [(dim, symbol.name, symbol.minimum, symbol.maximum) for dim, symbol in check.binds])
        for i, check in call.inputs.binding
        if isinstance(check, TensorCheck)
    ]
    return binds, call.method.constraints


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


def describe(call: MethodCall) -> dict[str, Any]:
    """The argument of :meth:`CallLibrary.make` (spec/targets.md), for all sizes (:mod:`..devices.call_sizes`)."""
    method, state = call.method, call.state.expected
    names = {name: len(method.leaves) + i for i, name in enumerate(state)}
    constants = [primal.name for primal in method.primals if isinstance(primal, schema.ConstantPrimal)]
    stored = {name: len(method.leaves) + len(state) + i for i, name in enumerate(constants)}
    leaves = zip(method.leaves, call.inputs.checks, strict=True)
    return {
        "undetermined": not method.deterministic,
        "leaves": [_leaf(leaf, check) for leaf, check in leaves],
        "state": [_tensor(e.dtype, e.shape, e.stride, refuses_gradient=e.frozen) for e in state.values()],
        "names": list(state),
        "ties": call.state.ties,
        "constants": [call.constants[name] for name in constants],
        "primals": [_primal_index(primal, names, stored) for primal in method.primals],
        "apart": [] if call.memory is None else _separate_memory(call.memory, names),
        "written": [leaf for leaf, _ in call.written_leaves.leaves],
        "forward": _executable(call.forward),
        "unviewed": call.own,
        "differentiable": None if call.differentiable is None else _differentiable(call.differentiable, method),
        "mutations": [(m.primal, m.output, m.hidden_from_autograd, m.unversioned) for m in method.mutations],
        "touched": method.touched,
        "results": [_result(result) for result in method.results],
    }


def _primal_index(primal: schema.Primal, names: Mapping[str, int], constants: Mapping[str, int]) -> int:
    """Index of a primal among leaves, state and constants."""
    if isinstance(primal, schema.InputPrimal):
        return primal.leaf
    assert isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal, schema.ConstantPrimal))
    return constants[primal.name] if isinstance(primal, schema.ConstantPrimal) else names[primal.name]


def _leaf(leaf: schema.InputLeaf, check: Any) -> dict[str, Any]:
    if isinstance(leaf, schema.ConstantLeaf):
        return {"constant": literal(leaf.value)}
    assert isinstance(leaf, schema.TensorLeaf)
    return _tensor(check.dtype, leaf.shape, leaf.stride, refuses_gradient=not check.requires_grad)


def _tensor(
    dtype: torch.dtype, shape: Sequence[schema.Dim], stride: Sequence[schema.Dim] | None, *, refuses_gradient: bool
) -> dict[str, Any]:
    strides = None if stride is None else list(stride)
    return {"dtype": dtype, "shape": list(shape), "stride": strides, "refuses_gradient": refuses_gradient}


def _separate_memory(memory: Memory, indices: Mapping[str, int]) -> list[tuple[int, int]]:
    return [*memory.overlap, *[(leaf, indices[name]) for leaf, items in memory.state for name, _, _ in items]]


def _executable(executable: Any) -> dict[str, Any]:
    """Code that the library runs itself, or a Python function."""
    if isinstance(executable, AotiSequence):
        parts = {name: _executable(part) for name, part in executable.parts.items()}
        return {"sequence": sequence_of(executable, parts)}
    if isinstance(executable, AotiExecutable):
        inputs, outputs = executable.positions
        return {"run": executable.run, "inputs": inputs, "outputs": outputs, "failed": executable.fail}
    return {"run": executable, "inputs": None, "outputs": None, "failed": None}


def sequence_of(executable: AotiSequence, parts: Mapping[str, Any]) -> dict[str, Any]:
    """How to run a graph in ``parts``, which are described by name."""
    indices = {name: i for i, name in enumerate(parts)}
    return {
        "parts": list(parts.values()),
        "unused": executable.unused,
        "calls": [(indices[name], *numbers) for name, *numbers in executable.calls],
        "outputs": executable.outputs,
    }


def _differentiable(differentiable: Differentiable, method: schema.Method) -> dict[str, Any]:
    from .names import saved_names  # not at a recorded start

    assert method.backward is not None
    saved = method.backward.saved
    sizes = [(i, s.expr) for i, s in enumerate(saved) if isinstance(s, schema.SavedSize)]
    carriers = {i: number for number, (i, _) in enumerate(sizes)}
    tangents = zip(differentiable.tangents, method.backward.tangents, differentiable.sources, strict=True)
    return {
        "executable": _executable(differentiable.backward),
        "visible": differentiable.visible,
        "plain": differentiable.non_differentiable,
        "saved": [("constant", carriers[i]) if i in carriers else _saved(item) for i, item in enumerate(saved)],
        "sizes": sizes,
        "tangents": [
            {
                "position": tangent.position,
                "dtype": tangent.dtype,
                "shape": list(described.shape),
                "stride": tangent.memory_format if described.stride is None else list(described.stride),
                "sources": list(sources),
            }
            for tangent, described, sources in tangents
        ],
        "gradients": [-1 if position is None else position for position in differentiable.gradients],
        "depends": [sorted(tangents) for tangents in differentiable.depends],
        "detached": differentiable.detached,
        "donated": getattr(differentiable.backward, "donated", []),
        "between": _between(differentiable, method),
        "changed": [f"{CHANGED}{name}" for name in saved_names(method)],
    }


def _between(differentiable: Differentiable, method: schema.Method) -> list[tuple[int, int, str]]:
    """Positions of visible outputs of which the first is computed from the second, and what to say."""
    positions = {output: i for i, output in enumerate(differentiable.visible)}
    return [
        (positions[result], positions[source], f"{BETWEEN}{source_path}\n{path}")
        for result, source, source_path, path in pairs_of_outputs(method) or ()
    ]


def _saved(item: schema.Saved) -> tuple[str, int]:
    if isinstance(item, schema.SavedPrimal):
        return "primal", item.primal
    assert isinstance(item, schema.SavedOutput)
    return "checked" if item.check_version else "unchecked", item.output


def _result(result: schema.Result) -> tuple[str, Any]:
    if isinstance(result, schema.InputResult):
        return "primal", result.primal
    if isinstance(result, schema.AliasResult):  # its base
        return ("primal", result.primal) if result.primal is not None else ("output", result.output)
    if isinstance(result, schema.ConstantResult):
        return "constant", literal(result.value)
    if isinstance(result, schema.SizeResult):
        return "size", result.expr
    assert isinstance(result, schema.FreshResult)
    return "output", result.output


def refuse(what: str, concerned: torch.Tensor | dict[int, Any] | None) -> None:
    """Raise the same error as the Python path does in a backward. The library calls this.

    ``concerned``: the gradient that is refused, or the hooks on a result. Hooks that are not the
    caller's are no error.
    """
    from .refused_gradients import batched_gradient_error, changed_error, graph_freed_error, higher_order_error

    if what.startswith(CHANGED):
        raise changed_error(what.removeprefix(CHANGED))
    if what.startswith(BETWEEN):
        if isinstance(concerned, dict) and not has_hooks_of_caller(concerned):
            return
        raise between_error(*what.removeprefix(BETWEEN).split("\n"))
    errors: dict[str, Callable[[], AutogradError]] = {
        "second derivative": lambda: higher_order_error("first"),
        "released": graph_freed_error,
        "gradient": batched_gradient_error,
        "compiled autograd": _called_outside,
    }
    raise errors[what]()


def _called_outside() -> AutogradError:
    """The error for compiled autograd that is enabled between a call and its backward."""
    return AutogradError(
        "Compiled autograd runs the backward of a call that was made outside it, in native code.",
        hint=f"Turn compiled autograd on before the call, or set {SWITCH}=0 before the bundle is loaded.",
    )
