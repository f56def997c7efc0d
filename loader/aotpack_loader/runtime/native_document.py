"""Writes the document of a native call (:mod:`..format.native_call`): what native code needs of a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..devices.aoti import AotiExecutable, AotiSequence
from ..format import native_call, schema
from .autograd import Differentiable
from .call import MethodCall
from .identity import Memory
from .inputs import TensorCheck
from .result_sources import pairs_of_outputs
from .state import Expected


def describe(call: MethodCall) -> native_call.NativeCall:
    """The document of a method that native code can call, for all of its sizes."""
    method, state = call.method, call.state.expected
    names = {name: len(method.leaves) + i for i, name in enumerate(state)}
    constants = [primal.name for primal in method.primals if isinstance(primal, schema.ConstantPrimal)]
    stored = {name: len(method.leaves) + len(state) + i for i, name in enumerate(constants)}
    leaves = [_leaf(leaf, check) for leaf, check in zip(method.leaves, call.inputs.checks, strict=True)]
    differentiable = None if call.differentiable is None else _differentiable(call, call.differentiable)
    results = [_result(result) for result in method.results]
    symbols = list(_symbols(call))
    return native_call.NativeCall(
        nondeterministic=not method.deterministic,
        leaves=leaves,
        state=[native_call.State(name, _state(expected)) for name, expected in state.items()],
        ties=call.state.ties,
        constants=constants,
        symbols=symbols,
        constraints=method.constraints,
        expressions=_expressions([leaves, differentiable, results], {symbol.name for symbol in symbols}),
        primals=[_primal_index(primal, names, stored) for primal in method.primals],
        must_not_overlap=[] if call.memory is None else _separate_memory(call.memory, names),
        written_leaves=[leaf for leaf, _ in call.written_leaves.leaves],
        forward=_graph(f"{call.name}.forward", call.forward),
        detached_outputs=call.detached_outputs,
        differentiable=differentiable,
        mutations=[native_call.Mutation(m.primal, m.output, m.hidden_from_autograd, m.unversioned) for m in method.mutations],
        touched=method.touched,
        results=results,
    )


def _symbols(call: MethodCall) -> Iterator[native_call.Symbol]:
    for i, check in call.inputs.binding:
        if isinstance(check, TensorCheck):
            for dim, symbol in check.binds:
                yield native_call.Symbol(symbol.name, i, dim, symbol.minimum, symbol.maximum)


def _expressions(parts: Any, symbols: set[str]) -> list[str]:
    """The sizes in ``parts`` that are neither numbers nor symbols, each once."""
    return list(dict.fromkeys(dim for dim in _dims(parts) if isinstance(dim, str) and dim not in symbols))


def _dims(part: Any) -> Iterator[schema.Dim]:
    """All sizes and strides."""
    if isinstance(part, list):
        for item in part:
            yield from _dims(item)
    elif isinstance(part, native_call.Part):
        for field in part.__struct_fields__:
            value = getattr(part, field)
            if field == "size":
                yield value
            elif field in ("shape", "stride"):
                yield from value if isinstance(value, list) else ()
            else:
                yield from _dims(value)


def _primal_index(primal: schema.Primal, names: Mapping[str, int], constants: Mapping[str, int]) -> int:
    """Index of a primal among leaves, state and constants."""
    if isinstance(primal, schema.InputPrimal):
        return primal.leaf
    assert isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal, schema.ConstantPrimal))
    return constants[primal.name] if isinstance(primal, schema.ConstantPrimal) else names[primal.name]


def _leaf(leaf: schema.InputLeaf, check: Any) -> native_call.ExpectedTensor | native_call.ExpectedConstant:
    if isinstance(leaf, schema.ConstantLeaf):
        return native_call.ExpectedConstant(leaf.value)
    assert isinstance(leaf, schema.TensorLeaf)
    return native_call.ExpectedTensor(leaf.dtype, leaf.shape, leaf.stride, refuses_gradient=not check.requires_grad)


def _state(expected: Expected) -> native_call.ExpectedTensor:
    dtype: Any = str(expected.dtype).removeprefix("torch.")
    return native_call.ExpectedTensor(dtype, list(expected.shape), list(expected.stride), refuses_gradient=expected.frozen)


def _separate_memory(memory: Memory, indices: Mapping[str, int]) -> list[tuple[int, int]]:
    return [*memory.overlap, *[(leaf, indices[name]) for leaf, items in memory.state for name, _, _ in items]]


def _graph(name: str, executable: Any) -> native_call.Graph:
    """How the graph with the key ``name`` runs."""
    if isinstance(executable, AotiSequence):
        indices = {part: i for i, part in enumerate(executable.parts)}
        return native_call.Sequence(
            parts=[_code(part, code) for part, code in executable.parts.items()],
            unused=executable.unused,
            calls=[native_call.SequenceCall(indices[part], *numbers) for part, *numbers in executable.calls],
            outputs=executable.outputs,
        )
    return _code(name, executable) if isinstance(executable, AotiExecutable) else native_call.Function(name)


def _code(name: str, executable: AotiExecutable) -> native_call.Code:
    inputs, outputs = executable.positions
    return native_call.Code(name, inputs, outputs)


def _differentiable(call: MethodCall, differentiable: Differentiable) -> native_call.Differentiable:
    method = call.method
    assert method.backward is not None
    tangents = zip(differentiable.tangents, method.backward.tangents, differentiable.sources, strict=True)
    return native_call.Differentiable(
        backward=_graph(f"{call.name}.backward", differentiable.backward),
        visible=differentiable.visible,
        non_differentiable=differentiable.non_differentiable,
        saved=list(_saved(method)),
        tangents=[
            native_call.Tangent(
                position=tangent.position,
                dtype=described.dtype,
                shape=described.shape,
                stride=described.memory_format if described.stride is None else described.stride,
                sources=list(sources),
            )
            for tangent, described, sources in tangents
        ],
        gradients=differentiable.gradients,
        depends=[sorted(tangents) for tangents in differentiable.depends],
        detached=differentiable.detached,
        donated=getattr(differentiable.backward, "donated", []),
        derived_outputs=_derived_outputs(differentiable, method),
    )


def _derived_outputs(differentiable: Differentiable, method: schema.Method) -> list[native_call.DerivedOutput]:
    positions = {output: i for i, output in enumerate(differentiable.visible)}
    return [
        native_call.DerivedOutput(positions[result], positions[source], path, source_path)
        for result, source, source_path, path in pairs_of_outputs(method) or ()
    ]


def _saved(method: schema.Method) -> Iterator[native_call.SavedPrimal | native_call.SavedOutput | native_call.SavedSize]:
    from .names import saved_names  # not at a recorded start

    assert method.backward is not None
    names = iter(saved_names(method))
    for item in method.backward.saved:
        if isinstance(item, schema.SavedPrimal):
            yield native_call.SavedPrimal(item.primal, next(names))
        elif isinstance(item, schema.SavedOutput):
            yield native_call.SavedOutput(item.output, item.check_version, next(names) if item.check_version else "")
        else:
            yield native_call.SavedSize(item.expr)


def _result(result: schema.Result) -> native_call.Result:
    if isinstance(result, schema.InputResult):
        return native_call.PrimalResult(result.primal)
    if isinstance(result, schema.AliasResult) and result.primal is not None:  # its base
        return native_call.PrimalResult(result.primal)
    if isinstance(result, schema.ConstantResult):
        return native_call.ConstantResult(result.value)
    if isinstance(result, schema.SizeResult):
        return native_call.SizeResult(result.expr)
    assert isinstance(result, (schema.FreshResult, schema.AliasResult))
    assert result.output is not None
    return native_call.OutputResult(result.output)
