"""Compares the results of a loaded bundle with those of eager, for the recorded inputs of its self-test.

Stored tensors are named ``input.<leaf>``, ``result.<number>``, ``gradient.<parameter>``,
``input_gradient.<leaf>`` and ``buffer.<name>``. For a tensor subclass its plain tensors are stored,
under its name and their attribute paths. The backward starts from ones in every result that
requires grad.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from .archive.bundle import Bundle
from .archive.weights import CODES, View, WeightMap
from .devices.literals import literal
from .errors import AotpackError, CorruptBundleError
from .format import expressions, schema
from .format import subclasses as held
from .runtime.modes import as_built
from .runtime.tree import flattener, unflattener

if TYPE_CHECKING:
    from .module.program import LoadedProgram

_DTYPES = {code: name for name, code in CODES.items()}
_EPSILON_FACTOR = 2e3
"""Tolerance in units of the element type's epsilon, relative to the largest element of the expected tensor."""


_NUDGE, _ROOM = 100, 20
"""By how many epsilons each number is changed, to see how far a result moves; how many times as far off it may be."""

_Row = tuple[str, float, float, bool]
_Observed = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class SelfTestReport:
    """Rows are ``(name, largest absolute error, tolerance, ok)``."""

    ran: bool
    ok: bool
    rows: list[tuple[str, float, float, bool]]


def replay(path: str | os.PathLike[str], load: Callable[[], LoadedProgram], subclasses: Collection[type] = ()) -> SelfTestReport:
    """Run one step of what ``load`` returns with the recorded inputs of the bundle at ``path``, and compare.

    ``load`` is called for each run: a step may change the state. It seeds torch's random numbers.
    """
    with Bundle.open(path) as bundle:
        recorded = bundle.self_test()
        if recorded is None:
            return SelfTestReport(False, True, [])
        expected = {name: _read(recorded, name).clone() for name in recorded.names()}
        autocast = _method(bundle.program).autocast
        share = 0.0 if autocast is None else 16 * torch.finfo(getattr(torch, autocast)).eps

    def step(inputs: Mapping[str, torch.Tensor], change: Callable[[torch.Tensor], object] | None = None) -> _Observed:
        model = load()
        program = model.aotpack.program
        if change is not None:
            for tensor in (*model.parameters(), *model.buffers()):
                change(tensor)
        method = _method(program)
        args, kwargs = moved(_arguments(method, inputs, _classes(program, subclasses)), device_of(model))
        return {name: value.to("cpu") for name, value in observe(model, method, args, kwargs)}

    found = step(expected)
    rows = [_compare(name, expected.get(name), value, share) for name, value in found.items()]
    if any(not ok for *_, ok in rows):
        rows = _with_rounding_tolerances(rows, found, expected, step)
    rows += [(name, float("inf"), 0.0, False) for name in expected if not name.startswith("input.") and name not in found]
    return SelfTestReport(True, all(row[3] for row in rows), rows)


def _with_rounding_tolerances(
    rows: Sequence[_Row],
    found: _Observed,
    recorded: _Observed,
    step: Callable[[_Observed, Callable[[torch.Tensor], object]], _Observed],
) -> list[_Row]:
    """``rows`` with tolerances that include the effect of the last bits of arguments and state.

    Some gradients are zero except for rounding (of a bias before BatchNorm), but are sums of large
    numbers. The size of the summands determines their error. It becomes visible when every input
    number is rounded differently.
    """
    generator = torch.Generator("cpu").manual_seed(0)

    def change(tensor: torch.Tensor) -> None:
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            signs = torch.randint(0, 2, tensor.shape, generator=generator, device="cpu") * 2 - 1
            step = torch.finfo(tensor.dtype).eps * _NUDGE
            with torch.no_grad():
                tensor.detach().mul_((1 + signs * step).to(tensor.device))

    nudged = {name: value.clone() for name, value in recorded.items()}
    for name, value in nudged.items():
        if name.startswith("input."):
            change(value)
    moved = step(nudged, change)
    return [_with_rounding_tolerance(row, found[row[0]], moved.get(row[0])) for row in rows]


def _with_rounding_tolerance(row: _Row, found: torch.Tensor, moved: torch.Tensor | None) -> _Row:
    name, error, limit, ok = row
    if (
        ok
        or moved is None
        or moved.shape != found.shape
        or not found.numel()
        or not (found.dtype.is_floating_point or found.dtype.is_complex)
    ):
        return row
    limit = max(limit, _ROOM * float((moved - found).abs().nan_to_num(0.0).max()))
    return name, error, limit, error <= limit


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a module's parameters and buffers; the CPU, if it has none."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def moved(values: Any, device: torch.device) -> Any:
    """Arguments on a device. Only tensors change."""
    if device.type == "cpu":
        return values
    return tree_map_only(torch.Tensor, lambda x: x.detach().to(device).requires_grad_(x.requires_grad), values)


def observe(
    model: torch.nn.Module, method: schema.Method, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run one step of ``model``, eager or loaded. Yields all its tensors with their names in the self-test."""
    torch.manual_seed(seed)
    training = any(mode.training and mode.grad for mode in method.serves)
    model.train(training)
    leaves = _flatten(method.inputs, (args, kwargs))  # the call may change containers
    with torch.set_grad_enabled(training), as_built(method, device_of(model).type):
        results = _flatten(method.outputs, model(*args, **kwargs))
    tensors = [(i, value) for i, value in enumerate(results) if isinstance(value, torch.Tensor)]
    heads = [value for _, value in tensors if value.requires_grad and value.grad_fn is not None]
    if heads:
        torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
    for i, value in tensors:
        yield from stored_as(f"result.{i}", value)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield from stored_as(f"gradient.{name}", parameter.grad)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.grad is not None:
            yield from stored_as(f"input_gradient.{i}", leaf.grad)
    for name, buffer in model.named_buffers():
        yield from stored_as(f"buffer.{name}", buffer)


def stored_as(name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The stored form of a tensor: itself, dense; for a subclass its plain tensors."""
    if not hasattr(value, "__tensor_flatten__"):
        value = value.detach()
        yield name, value if value.layout == torch.strided else value.to_dense()
        return
    for attribute in value.__tensor_flatten__()[0]:
        yield from stored_as(f"{name}.{attribute}", getattr(value, attribute))


def recorded_inputs(bundle: Bundle, subclasses: Collection[type] = ()) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The recorded example inputs, or None if the bundle has none.

    Raises:
        SubclassError: some are of a class that is not among ``subclasses``.
    """
    recorded = bundle.self_test()
    if recorded is None:
        return None
    names = [name for name in recorded.names() if name.startswith("input.")]
    found = {name: _read(recorded, name).clone() for name in names}
    return _arguments(_method(bundle.program), found, _classes(bundle.program, subclasses))


def random_inputs(
    program: schema.Program, method: schema.Method, seed: int, subclasses: Collection[type] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs that fit ``method``: normal floats, integers and booleans of 0 and 1 (valid indices), sizes of the build.

    Raises:
        SubclassError: some are of a class that is not among ``subclasses``.
        AotpackError: there is no memory for them.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    sizes = _sizes(method)
    classes = _classes(program, subclasses)
    leaves: list[Any] = []
    for leaf in method.leaves:
        if isinstance(leaf, schema.ConstantLeaf):
            leaves.append(literal(leaf.value))
            continue
        if isinstance(leaf, schema.IntegerLeaf):
            leaves.append(sizes[leaf.size])
            continue
        parts = [(leaf.dtype, leaf.shape)]
        if leaf.subclass is not None:
            parts = [(part.dtype, part.shape) for part in held.stored_parts(leaf.subclass)]
        values = [
            _random(leaf.path, [expressions.evaluate(size, sizes) for size in shape], getattr(torch, dtype), generator)
            for dtype, shape in parts
        ]
        leaves.append(_rebuilt(leaf, values, sizes, classes))
    args, kwargs = unflattener(method.inputs)(iter(leaves))
    return args, kwargs


def _random(path: str, shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, generator=generator, device="cpu").to(dtype)
        return torch.randint(0, 2, shape, generator=generator, device="cpu").to(dtype)
    except RuntimeError as error:
        raise AotpackError(f"There is no memory for the argument {path}, of the shape {tuple(shape)}.") from error


def _method(program: schema.Program) -> schema.Method:
    """The method of the self-test: of those that the module's own call serves, the one with a backward, if any."""
    own = {name: method for name, method in program.methods.items() if method.serves and not method.function}
    if not own:
        raise CorruptBundleError("The bundle has a self-test, and no method that it could be of.")
    return own.get("train") or next(iter(own.values()))


def _classes(program: schema.Program, provided: Collection[type]) -> Mapping[str, type[torch.Tensor]]:
    required = program.requirements.subclasses
    if not required:
        return {}
    from .runtime.subclasses.wrappers import resolve  # most programs have none

    return resolve(required, provided)


def _sizes(method: schema.Method) -> dict[str, int]:
    """The sizes of the example."""
    return {symbol.name: symbol.hint or symbol.minimum for symbol in method.symbols}


def _rebuilt(
    leaf: schema.TensorLeaf, parts: list[torch.Tensor], sizes: Mapping[str, int], classes: Mapping[str, type[torch.Tensor]]
) -> torch.Tensor:
    """The argument made from these plain tensors."""
    if leaf.subclass is None:
        (value,) = parts
    else:
        from .runtime.subclasses.wrappers import Wrapper

        value = Wrapper(leaf.subclass, classes).unflatten(iter(parts), sizes)
    return value.requires_grad_(leaf.requires_grad)


def _arguments(
    method: schema.Method, recorded: Mapping[str, torch.Tensor], classes: Mapping[str, type[torch.Tensor]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    leaves: list[Any] = []
    sizes = _sizes(method)
    for i, leaf in enumerate(method.leaves):
        if isinstance(leaf, schema.ConstantLeaf):
            leaves.append(literal(leaf.value))
        elif isinstance(leaf, schema.IntegerLeaf):
            leaves.append(sizes[leaf.size])
        else:
            names = [f"input.{i}{part}" for part in held.part_names(leaf.subclass)]
            if not all(name in recorded for name in names):
                raise CorruptBundleError(f"The self-test lacks the input {leaf.path}.")
            leaves.append(_rebuilt(leaf, [recorded[name] for name in names], sizes, classes))
    args, kwargs = unflattener(method.inputs)(iter(leaves))
    return args, kwargs


def _flatten(tree: schema.Tree, value: Any) -> list[Any]:
    leaves: list[Any] = []
    flattener(tree, "")(value, leaves, [])
    return leaves


def _read(stored: WeightMap, name: str) -> torch.Tensor:
    found = stored.stored(name)
    return stored.tensor(View.contiguous(name, _DTYPES[found.dtype], found.shape))


def _compare(name: str, expected: torch.Tensor | None, found: torch.Tensor, share: float) -> tuple[str, float, float, bool]:
    """Compare one tensor. An error of ``share`` of the largest element is always tolerated.

    That is for values that were computed in a half-precision type and stored in float32.
    """
    if expected is None or expected.shape != found.shape or expected.dtype != found.dtype:
        return name, float("inf"), 0.0, False
    if not found.numel():
        return name, 0.0, 0.0, True
    if not (found.dtype.is_floating_point or found.dtype.is_complex):
        different = float((expected != found).sum())
        return name, different, 0.0, different == 0
    limit = torch.finfo(found.dtype).eps * _EPSILON_FACTOR * max(float(expected.abs().max()), 1e-6)
    limit = max(limit, share * float(expected.abs().max()))
    error = float((expected - found).abs().nan_to_num(float("inf")).max())
    return name, error, limit, error <= limit
