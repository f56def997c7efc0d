"""Creates fake tensors and symbolic sizes, and tests what kind of tensor a value is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.lowering
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import _config as shapes_config
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    RelaxedUnspecConstraint,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    SubclassSymbolicContext,
    statically_known_true,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from aotpack_loader.runtime.memory import extent

from .patching import replaced


class Bounds(NamedTuple):
    """The range of a dynamic size; null is unbounded.

    ``automatic``: the size is dynamic only if the model allows it (``torch.export.Dim.AUTO``).
    ``name``: the user's name for it, or empty. The size is ``factor * root + offset``, where ``root``
    is the name of the ``Dim`` that it is derived from, or its own; empty: it has none.
    """

    minimum: int | None = None
    maximum: int | None = None
    automatic: bool = False
    name: str = ""
    root: str = ""
    factor: int = 1
    offset: int = 0


DynamicDims = Mapping[int, Bounds]
"""Maps a dimension to the range of its size."""


@contextlib.contextmanager
def free_sizes() -> Iterator[None]:
    """While a model is traced and compiled, let a dynamic size be 0 or 1, and differ from sizes of
    the same hint.

    Otherwise torch makes sizes of 0 and 1 constant, and treats equal sizes as one symbol. With this
    setting, decisions that depend on such values become guards.
    """
    with shapes_config.patch(backed_size_oblivious=True, use_duck_shape=False):  # type: ignore[attr-defined]
        yield


def made_outside_modes() -> contextlib.AbstractContextManager[None]:
    """Make fake tensors of real ones outside of function modes, each of which would see all attributes that are read."""

    def from_real_tensor(converter: FakeTensorConverter, *args: Any, **kwargs: Any) -> FakeTensor:
        with torch._C.DisableTorchFunction():
            return original(converter, *args, **kwargs)

    original = FakeTensorConverter.from_real_tensor
    return replaced("fake-tensors-outside-modes", FakeTensorConverter, "from_real_tensor", from_real_tensor)


@contextlib.contextmanager
def marked_dynamic(dims: Sequence[tuple[torch.Tensor, DynamicDims]]) -> Iterator[None]:
    """Mark sizes of example tensors dynamic for Dynamo (``mark_dynamic``), and remove the marks
    afterwards.
    """
    before = [dict(tensor.__dict__) for tensor, _ in dims]
    try:
        for tensor, sizes in dims:
            for dim, bounds in sizes.items():
                if bounds.automatic:
                    torch._dynamo.maybe_mark_dynamic(tensor, dim)
                elif bounds.minimum is None and bounds.maximum is None:
                    torch._dynamo.mark_dynamic(tensor, dim)
                else:  # Dynamo takes both bounds or none
                    high = int_oo if bounds.maximum is None else bounds.maximum
                    torch._dynamo.mark_dynamic(tensor, dim, min=bounds.minimum or 0, max=high)
        yield
    finally:
        for (tensor, _), attributes in zip(dims, before, strict=True):
            for name in set(tensor.__dict__) - set(attributes):
                delattr(tensor, name)


def stored_elements(tensor: torch.Tensor) -> int | torch.SymInt:
    """How many elements the storage of a tensor holds.

    The result is in terms of the tensor's sizes if the tensor ends where its storage ends. Torch
    2.13 cannot trace any other product of three sizes.
    """
    end = tensor.storage_offset() + extent(tensor.shape, tensor.stride())
    with disable_proxy_modes_tracing():
        if statically_known_true(end * tensor.element_size() == tensor.untyped_storage().nbytes()):
            return end
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def fake_mode_with_shapes() -> FakeTensorMode:
    """A new fake mode with a shape environment, for front ends that provide none."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def fake_tensor(mode: FakeTensorMode, tensor: torch.Tensor, dims: DynamicDims) -> torch.Tensor:
    """A fake copy of ``tensor`` whose sizes in ``dims`` are symbols; parts of a subclass follow if
    they have its shape.
    """
    if dims and tensor._base is not None and tensor.is_leaf and is_plain_tensor(tensor):
        # As a view it would get symbols for the sizes of its base, which bound its own.
        given = tensor.data.requires_grad_(tensor.requires_grad)
    else:
        given = tensor
    fake = mode.from_tensor(given, symbolic_context=_symbolic_context(given, dims))
    if is_wrapper_subclass(tensor) or tensor.layout != torch.strided:
        return fake
    held = tensor.untyped_storage().nbytes()
    own = extent(tensor.shape, tensor.stride()) * tensor.element_size() if tensor.numel() else 0
    if held <= own:  # torch's fake storage is as large as the tensor
        return fake
    if not dims:
        fake.untyped_storage().resize_(held)
        return fake
    # Add the example's storage size to the symbolic size. Accesses that fit then fit for all sizes,
    # without a guard.
    with mode:
        memory = torch.empty(fake.untyped_storage().nbytes() + held, dtype=torch.uint8, device=tensor.device)
    with torch.no_grad():
        return fake.set_(memory.untyped_storage(), 0, fake.shape, fake.stride())


def varying_integer(mode: FakeTensorMode, value: int, bounds: Bounds) -> torch.SymInt:
    """An integer argument as a symbol with these ``bounds``."""
    env = mode.shape_env
    assert env is not None
    source = ConstantSource(f"{_VARYING}_{len(env.var_to_sources)}")
    symbol = env.create_symbol(value, source, DimDynamic.DYNAMIC, _constraint(bounds), do_not_specialize_zero_one=True)
    return env.create_symintnode(symbol, hint=value, source=source)  # type: ignore[return-value]


def is_varying_integer(value: object) -> bool:
    """Whether :func:`varying_integer` made a value."""
    if not isinstance(value, torch.SymInt) or value.node.shape_env is None:
        return False
    sources = value.node.shape_env.var_to_sources.get(value.node._expr, [])
    return any(str(getattr(source, "source_name", "")).startswith(_VARYING) for source in sources)


_VARYING = "aotpack_integer"


def relate(sizes: Sequence[tuple[Bounds, int | torch.SymInt]]) -> None:
    """Make sizes that are derived from one ``Dim`` expressions of one symbol, as the example has them.

    Sizes that are no whole multiple of the smallest one stay symbols of their own.
    """
    varying = sorted((pair for pair in sizes if isinstance(pair[1], torch.SymInt)), key=lambda pair: pair[0][-2:])
    for bounds, size in varying[1:]:
        least, smallest = varying[0]
        times = bounds.factor // least.factor
        if bounds.factor == times * least.factor:
            bool(size == times * (smallest - least.offset) + bounds.offset)


def _symbolic_context(tensor: torch.Tensor, dims: DynamicDims) -> Any:
    options: dict[str, Any] = {
        "dynamic_sizes": [DimDynamic.DYNAMIC if i in dims else DimDynamic.STATIC for i in range(tensor.dim())],
        "constraint_sizes": [_constraint(dims[i]) if i in dims else None for i in range(tensor.dim())],
    }
    if not is_wrapper_subclass(tensor):
        return StatelessSymbolicContext(**options)
    parts = {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}  # type: ignore[attr-defined]
    inner = {name: _symbolic_context(part, dims if part.shape == tensor.shape else {}) for name, part in parts.items()}
    return SubclassSymbolicContext(**options, inner_contexts=inner, tensor_source=ConstantSource("argument"))


def _constraint(bounds: Bounds) -> Any:
    minimum, maximum, automatic, *_ = bounds
    if automatic:
        return None
    if minimum is None and maximum is None:
        return RelaxedUnspecConstraint(warn_only=False)
    low = 0 if minimum is None else minimum
    return StrictMinMaxConstraint(vr=ValueRanges(low, int_oo if maximum is None else maximum), warn_only=False)


def is_wrapper_subclass(value: object) -> bool:
    """Whether a tensor wraps other tensors and can be flattened into them (``__tensor_flatten__``)."""
    return is_traceable_wrapper_subclass(value)


def is_plain_tensor(value: object) -> bool:
    """Whether a value is a tensor or parameter, possibly fake, but not a user's subclass."""
    return type(value) in _PLAIN_TENSORS


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor, FunctionalTensor)


def is_traced(value: object) -> bool:
    """Whether ``value`` is a tensor of a trace: it has no values."""
    return isinstance(value, (FakeTensor, FunctionalTensor)) or (
        isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)
    )


def is_nested_size(size: int | torch.SymInt) -> bool:
    """Whether a size is that of a jagged dimension, which differs for each row."""
    return isinstance(size, torch.SymInt) and size.node.is_nested_int()


def fake_inputs_of(
    exported: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[FakeTensorMode, tuple[Any, ...], dict[str, Any]]:
    """The fake inputs that an exported program was traced with, structured like the arguments."""
    values = {node.name: node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")}
    names = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    flat = [values[name] for name in names]
    mode = next((v.fake_mode for v in values.values() if isinstance(v, torch._subclasses.FakeTensor)), None)
    leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    flat = [fake if isinstance(leaf, torch.Tensor) else leaf for leaf, fake in zip(leaves, flat, strict=True)]
    for leaf, fake in zip(leaves, flat, strict=True):
        if isinstance(leaf, torch.Tensor):
            fake.requires_grad_(leaf.requires_grad)
    mode = mode or FakeTensorMode(shape_env=ShapeEnv())
    mode.allow_non_fake_inputs = True
    fake_args, fake_kwargs = torch.utils._pytree.tree_unflatten(flat, spec)
    return mode, fake_args, fake_kwargs


def blank_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same class, sizes and strides, with uninitialized elements of its own.

    It starts at offset 0 of a storage as large as the tensor's: ``as_strided_`` may move within it,
    but not beyond.
    """
    if not is_wrapper_subclass(tensor):
        blank = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        blank.untyped_storage().resize_(max(blank.untyped_storage().nbytes(), tensor.untyped_storage().nbytes()))
        return blank
    return transform_subclass(tensor, lambda _, part: blank_like(part))  # type: ignore[no-any-return]


def real_tensor(value: torch.Tensor) -> torch.Tensor | None:
    """The real tensor behind a constant of a traced graph, or None if only its metadata are known."""
    if isinstance(value, torch._subclasses.FakeTensor):
        return value.constant
    if value.layout == torch.strided and value.numel() and not value.untyped_storage().data_ptr():
        return None
    if torch._is_functional_tensor(value) or isinstance(value, torch._subclasses.functional_tensor.FunctionalTensor):
        return None
    return value


def symbols_of(env: ShapeEnv, expression: str) -> set[Any]:
    """Symbols of the environment that occur in a rendered expression."""
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in expression).split())
    return {symbol for symbol in env.var_to_range if str(symbol) in words}


def symbols_in(sizes: Sequence[Any]) -> set[Any]:
    """Symbols of sizes or strides; plain integers have none."""
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def hint(env: ShapeEnv, symbol: Any) -> int | None:
    """The example's size for a symbol, or null."""
    value = env.backed_var_to_val.get(symbol)
    return None if value is None else int(value)


def example_like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of zeros with a fake tensor's dtype, sizes and strides at the example's sizes."""
    shape, stride = [[hint_of(size) for size in sizes] for sizes in (value.shape, value.stride())]
    return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device).zero_()


def hint_of(size: int | torch.SymInt) -> int:
    """A size at the example's sizes; 0 if the example does not determine it."""
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else 0
    return size


@contextlib.contextmanager
def fake_results(graph: torch.fx.Graph) -> Iterator[None]:
    """Inside the block operators compute fake tensors of a graph. Their sizes may vary."""
    with fake_mode_of(graph), enable_python_dispatcher():
        yield


def fake_mode_of(graph: torch.fx.Graph) -> FakeTensorMode:
    """The fake mode of a graph's values, or a new one if the graph has no fake tensor."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode
    return FakeTensorMode(shape_env=ShapeEnv())


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor are known to share an address."""
    if tensor.layout != torch.strided or is_wrapper_subclass(tensor):
        return False
    if any(statically_known_true(n == 0) for n in tensor.shape):
        return False
    dims = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if not statically_known_true(n == 1)]
    if any(statically_known_true(step == 0) and statically_known_true(n > 1) for n, step in dims):
        return True
    if not is_fixed(*tensor.shape, *tensor.stride()) or 0 in tensor.shape:
        return False
    return tensor.numel() > extent(tensor.shape, tensor.stride())  # more elements than addresses


def is_fixed(*values: int | torch.SymInt) -> bool:
    return all(not isinstance(value, torch.SymInt) or value.node.maybe_as_int() is not None for value in values)
