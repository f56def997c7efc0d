"""The operators ``aotpack::forward`` and ``aotpack::backward``: one method of a loaded bundle each way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
import torch
from torch import Tensor, nn

from ..._torch_compat import break_while_faking, operator
from ...devices.sandbox.untrusted_calls import refused
from ...errors import AotpackError, EditError, InputError, OperatorError, Problem
from ...format import expressions, schema
from ...runtime.autograd import Differentiable
from ...runtime.backward_inputs import Environment
from ...runtime.branches import BRANCH_MESSAGE, branch_error
from ...runtime.call import MethodCall
from ...runtime.expectations import Expected
from ...runtime.inputs import TensorCheck
from ...runtime.memory import extent
from ...runtime.state import UNFROZEN_MESSAGE
from .methods import MethodSignature, methods_of

_ADDRESSES: Final = 1 << 47
"""Bytes that a process can have. Compilers multiply sizes, and do not check that they fit."""
_numbers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_programs: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()


def number_of(program: nn.Module) -> int:
    """The number by which the operators find a program."""
    number = _numbers.setdefault(program, len(_numbers) and max(_numbers.values()) + 1)
    _programs[number] = program
    return number


class _DecodedCall(NamedTuple):
    """The parts of one call, decoded from the operator's arguments.

    ``positions`` are for each leaf its index among the operator's tensors.
    """

    program: Any
    call: MethodCall
    signature: MethodSignature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    positions: list[int | None]


class _Position:
    """Stands for a tensor where the arguments are flattened to see which leaf each tensor is."""

    def __init__(self, index: int) -> None:
        self.index = index


def _method(number: int, digest: str, method: str) -> tuple[Any, MethodCall, MethodSignature]:
    program: Any = _programs.get(number)
    if program is None or program.aotpack.digest != digest:
        raise EditError(
            "Compiled code calls a loaded bundle that no longer exists.",
            hint="Keep the loaded module, and compile its caller again.",
        )
    call = next(call for call in _calls_of(program) if call.name == method)
    return program, call, methods_of(program.aotpack.path, digest, program.aotpack.backend)[method]


def _decoded(number: int, digest: str, method: str, text: str, tensors: Sequence[Tensor]) -> _DecodedCall:
    program, call, signature = _method(number, digest, method)
    encoded = msgspec.json.decode(text)
    args, kwargs = (_decode(item, tensors) for item in encoded)
    problems: list[Problem] = []
    leaves = call.inputs.flatten(args, kwargs, problems)
    if problems:
        raise InputError("The arguments do not fit this bundle.", problems, hint="See `aotpack inspect` for all of them.")
    marked = [_decode(item, [_Position(i) for i in range(len(tensors))]) for item in encoded]
    found = call.inputs.flatten(marked[0], marked[1], [])
    positions = [leaf.index if isinstance(leaf, _Position) else None for leaf in found]
    return _DecodedCall(program, call, signature, args, kwargs, leaves, positions)


def _calls_of(program: Any) -> Iterator[MethodCall]:
    yield from program._aotpack_calls.values()
    for served in (program._aotpack_variants, *program._aotpack_functions.values()):
        for several in served.values():
            yield from several


def _decode(item: Any, tensors: Sequence[Any]) -> Any:
    kind, *rest = item
    if kind == "tensor":
        return tensors[rest[0]]
    if kind == "constant":
        return rest[0]
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in rest}
    items = [_decode(value, tensors) for value in rest]
    return tuple(items) if kind == "tuple" else items


def _environment(call: _DecodedCall) -> dict[str, int]:
    environment: dict[str, int] = {}
    for i, check in call.call.inputs.binding:
        check.bind(call.leaves[i], environment)
    return environment


def _sizes(call: MethodCall, sizes: Sequence[int]) -> dict[str, int]:
    return {symbol.name: size for symbol, size in zip(call.method.symbols, sizes, strict=True)}


def _bridge(call: MethodCall) -> Differentiable:
    assert call.differentiable is not None
    return call.differentiable


def _saved_primals(call: MethodCall) -> list[int]:
    """The primals that the backward saves, without constants of the bundle."""
    primals = call.method.primals
    return [i for i in _bridge(call).saved.primals if not isinstance(primals[i], schema.ConstantPrimal)]


def _with_strides(call: MethodCall, primal: int, value: Tensor, environment: dict[str, int]) -> Tensor:
    """A saved argument as the forward graph got it."""
    source = call.method.primals[primal]
    return call.inputs.checks[source.leaf](value, environment, []) if isinstance(source, schema.InputPrimal) else value


def _storages(tensors: Sequence[Tensor]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _primals(call: _DecodedCall, leaves: Sequence[Any], state: Sequence[Tensor]) -> list[Any]:
    values = dict(zip(call.signature.names, state, strict=True))
    return call.call.primals(values, list(leaves))


def _empty(values: Sequence[Any], environment: Environment, device: torch.device) -> list[Tensor]:
    """Fake tensors as the bundle records them. Where no tensor can be such, the caller's graph ends before the call.

    The call then says what is wrong, as it does outside of a compiled caller.
    """
    try:
        return [_fake(value, environment, device) for value in values]
    except (AotpackError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        break_while_faking(f"a loaded bundle records results that cannot be made: {reason}")


def _fake(value: Any, environment: Environment, device: torch.device) -> Tensor:
    shape, stride = ([_size(size, environment) for size in sizes] for sizes in (value.shape, value.stride))
    dtype: torch.dtype = getattr(torch, value.dtype)
    bytes_of = [dtype.itemsize * size for size in (math.prod(shape), extent(shape, stride)) if type(size) is int]
    if max(bytes_of, default=0) > _ADDRESSES:
        raise OverflowError(f"it has {max(bytes_of)} bytes")
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _size(size: schema.Dim, environment: Environment) -> int:
    return expressions.evaluate(size, environment)


def _as_recorded(
    found: Sequence[Any], recorded: Sequence[Any], call: MethodCall, environment: Environment, seen: Sequence[Tensor]
) -> list[Tensor]:
    """The outputs of a graph as the caller's compiler assumes them: what the graph records, in memory of their own.

    The compiled caller reads that many elements of that type without looking at the tensors, and may
    write to them. ``seen`` are the tensors that it or the bundle has beside these.

    Raises:
        OperatorError: outputs have another type, size, device or layout; names all of them.
    """
    for value in recorded:
        [_size(size, environment) for size in value.shape]  # one without a value would count as unknown, and not be compared
    expected = [Expected(f"output {i}", value, strides=False) for i, value in enumerate(recorded)]
    problems = [p for item, value in zip(expected, found, strict=True) for p in item.problems(value, environment, call.device)]
    if problems:
        raise OperatorError(
            f"The graphs of method {call.name!r} do not return what the bundle records.",
            problems,
            hint="Compiled code relies on it. The bundle may be damaged: build it again.",
        )
    held = _storages([*seen, *call.constants.values()])
    try:
        return [_own(output, value, environment, held) for output, value in zip(found, recorded, strict=True)]
    except RuntimeError as error:
        raise refused(error) from error  # strides that no tensor can have


def _own(found: Tensor, value: Any, environment: Environment, held: set[int]) -> Tensor:
    """An output with the recorded strides and memory of its own."""
    dtype, strides = getattr(torch, value.dtype), tuple(_size(step, environment) for step in value.stride)
    is_as_stored = not found.is_conj() and not found.is_neg() and found.dtype == dtype
    fits = is_as_stored and found.stride() == strides and found.storage_offset() == 0
    if not fits or found.untyped_storage()._cdata in held:
        found = torch.empty_strided(found.shape, strides, dtype=dtype, device=found.device).copy_(found)
    held.add(found.untyped_storage()._cdata)
    return found


@operator("aotpack::forward")
def _forward(
    number: int, digest: str, method: str, text: str, tensors: Sequence[Tensor], state: Sequence[Tensor]
) -> list[Tensor]:
    found = _decoded(number, digest, method, text, tensors)
    call, values = found.call, dict(zip(found.signature.names, state, strict=True))
    edits = found.program._aotpack_edits
    if method not in edits.sound and edits.check(found.program, call):
        raise EditError("A loaded bundle cannot average statistics inside a compiled caller.", hint="Call update_bn outside it.")
    call.modes.check()
    leaves, strided, environment = call.inputs(found.args, found.kwargs)
    call.state.check({**found.program._aotpack_state(), **values})
    if call.memory is not None:
        call.memory.check(leaves, values)
    primals = _primals(found, strided, state)
    try:
        with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
            outputs = call.run(primals, environment)
    except RuntimeError as error:
        if BRANCH_MESSAGE not in str(error):
            raise
        raise branch_error(error) from error
    return _as_recorded(outputs, found.signature.outputs, call, environment, [*tensors, *state])


def _forward_fake(
    number: int, digest: str, method: str, text: str, tensors: Sequence[Tensor], state: Sequence[Tensor]
) -> list[Tensor]:
    found = _decoded(number, digest, method, text, tensors)
    environment = _environment(found)
    outputs, gradients = found.signature.outputs, found.signature.gradients  # later, no break is possible any more
    return _empty([*outputs, *gradients], environment, found.call.device)[: len(outputs)]


def _lost_gradients(call: _DecodedCall, state: Sequence[Tensor]) -> Iterator[Problem]:
    for check, leaf in zip(call.call.inputs.checks, call.leaves, strict=True):
        if isinstance(check, TensorCheck) and isinstance(leaf, Tensor) and leaf.requires_grad and not check.requires_grad:
            yield check.lost_gradient()
    for name, value in zip(call.signature.names, state, strict=True):
        if call.call.state.expected[name].frozen and value.requires_grad:
            yield Problem(name, UNFROZEN_MESSAGE)


@operator("aotpack::backward")
def _backward(
    number: int,
    digest: str,
    method: str,
    sizes: Sequence[int],
    primals: Sequence[Tensor],
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
) -> list[Tensor]:
    """The results of the backward graph.

    ``primals`` and ``outputs`` are those that the backward saves. ``gradients`` are those of the
    outputs in ``Differentiable.visible``.
    """
    call, signature = _method(number, digest, method)[1:]
    bridge, environment = _bridge(call), _sizes(call, sizes)
    values = [_with_strides(call, i, value, environment) for i, value in zip(_saved_primals(call), primals, strict=True)]
    constants = call.constants
    given = iter(values)
    arguments: list[Any] = [
        constants[primal.name] if isinstance(primal, schema.ConstantPrimal) else next(given)
        for primal in (call.method.primals[i] for i in bridge.saved.primals)
    ]
    arguments += [*outputs, *[expressions.evaluate(size, environment) for size in bridge.saved.sizes]]
    arguments = arguments if bridge.saved.order is None else [arguments[i] for i in bridge.saved.order]
    conventions = [] if call.method.backward is None else call.method.backward.tangents
    for tangent, recorded in zip(bridge.tangents, conventions, strict=True):
        shape = torch.Size([expressions.evaluate(size, environment) for size in recorded.shape])
        arguments.append(tangent(gradients[tangent.position], shape, environment, call.device))
    with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
        results = bridge.retaining(arguments)
    seen = [*primals, *outputs, *[gradient for gradient in gradients if gradient is not None]]
    return _as_recorded(results, signature.gradients, call, environment, seen)


def _backward_fake(
    number: int,
    digest: str,
    method: str,
    sizes: Sequence[int],
    primals: Sequence[Tensor],
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
) -> list[Tensor]:
    call, signature = _method(number, digest, method)[1:]
    return _empty(signature.gradients, _sizes(call, sizes), call.device)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    number, digest, method, text, tensors, state = inputs
    found = _decoded(number, digest, method, text, tensors)
    if problems := [*_lost_gradients(found, state)]:
        raise InputError("A gradient would be lost.", problems)
    call, bridge = found.call, found.call.differentiable
    if bridge is None:
        ctx.mark_non_differentiable(*output)
        return
    primals = _primals(found, found.leaves, state)
    idle = bridge.without_gradient(primals)
    shown = {position for i, position in enumerate(bridge.visible) if i not in idle}
    ctx.mark_non_differentiable(*[value for i, value in enumerate(output) if i not in shown])
    ctx.set_materialize_grads(False)
    environment = _environment(found)
    ctx.constants = number, digest, method, [environment[symbol.name] for symbol in call.method.symbols]
    ctx.positions, ctx.counts = found.positions, (len(tensors), len(state))
    kept = [primals[i] for i in _saved_primals(call)]
    ctx.kept = len(kept)
    ctx.save_for_backward(*kept, *[output[i] for i in (*bridge.saved.checked, *bridge.saved.unchecked)])


def _differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> Any:
    call, signature = _method(*ctx.constants[:3])[1:]
    bridge = _bridge(call)
    of_tensors: list[Tensor | None] = [None] * ctx.counts[0]
    of_state: list[Tensor | None] = [None] * ctx.counts[1]
    shown = [gradients[position] for position in bridge.visible]
    received = {i for i, tangent in enumerate(bridge.tangents) if shown[tangent.position] is not None}
    if not received:
        return None, None, None, None, of_tensors, of_state
    saved = ctx.saved_tensors
    results = torch.ops.aotpack.backward(*ctx.constants, saved[: ctx.kept], saved[ctx.kept :], shown)
    for primal, position in zip(call.method.primals, bridge.gradients, strict=True):
        if position is None or (bridge.depends and bridge.depends[position] and not bridge.depends[position] & received):
            continue
        if isinstance(primal, schema.InputPrimal) and (index := ctx.positions[primal.leaf]) is not None:
            known = of_tensors[index]
            of_tensors[index] = results[position] if known is None else known + results[position]
        elif isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)):
            of_state[signature.names.index(primal.name)] = results[position]
    return None, None, None, None, of_tensors, of_state


_forward.register_fake(_forward_fake)
_backward.register_fake(_backward_fake)
_forward.register_autograd(_differentiate, setup_context=_save)
