"""Faults of Inductor (torch 2.13) that are mended while a graph is compiled: ``torch.compile`` gives wrong numbers there.

What there is to each is in tests/conformance or tests/test_cpu_target.py, as a case that fails without.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import sympy
import sympy.core.cache
import torch
from torch._inductor import ir, lowering, virtualized
from torch._inductor import utils as inductor_utils
from torch._inductor.codegen import common, cpp
from torch._inductor.fx_passes import reinplace
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.sizevars import SizeVarAllocator
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy import functions
from torch.utils._sympy.functions import ModularIndexing

from .autograd import without_views
from .inductor_results import results_apart
from .inductor_sizes import sizes_left_open
from .overlaps import meets_itself


@contextlib.contextmanager
def faults_mended(saved: Collection[int]) -> Iterator[None]:
    """Compile with the faults mended, but for those of graphs (:mod:`.graph_faults`) and random numbers (:mod:`.randomness`).

    ``saved`` are the outputs that are kept for a backward; the others are results.
    """
    with (
        results_apart(saved),
        _once_for_all_threads(),
        _tiles_indexed_once(),
        _tails_of_tiles(),
        _indices_not_negative(),
        _bytes_stay_bytes(),
        _casts_round(),
        _numbers_in_double(),
        sizes_left_open(),
        _quotients_rounded_rightly(),
        _powers_of_their_type(),
        _places_in_order(),
        _added_in_one_place(),
        _smaller_of_any(),
        _pools_divided_rightly(),
        _copies_of_expanded(),
        _writes_read_after_fusion(),
        _writes_in_place(),
        _written_apart_from_concatenations(),
        _defaults_passed(),
    ):
        yield


@contextlib.contextmanager
def _once_for_all_threads() -> Iterator[None]:
    """Have one thread compute what a parallel region holds outside its loops, however many threads the compiling process has.

    Inductor (torch 2.13) leaves that out if it compiles with one thread, also where the code is to run with any number
    (``cpp.dynamic_threads``): two threads then divide a sum in place one after the other, and a mean is too small.
    """
    threads = inductor_utils.parallel_num_threads

    def several() -> int:
        return max(2, threads())

    with mock.patch.object(cpp, "parallel_num_threads", several):
        yield


@contextlib.contextmanager
def _tiles_indexed_once() -> Iterator[None]:
    """Mend addresses in Inductor's tiles: where it adds at an indirect index (the gradient of ``x[..., [i], :]``), it counts
    the place in the tile twice (torch 2.13), and writes elsewhere. ``torch.compile`` gives wrong gradients there, or crashes.
    """
    transform = cpp.CppTile2DKernel.transform_indexing

    def once(kernel: cpp.CppTile2DKernel, index: Any) -> Any:
        return index if index.has(kernel.inner_itervar()) else transform(kernel, index)

    with mock.patch.object(cpp.CppTile2DKernel, "transform_indexing", once):
        yield


@contextlib.contextmanager
def _tails_of_tiles() -> Iterator[None]:
    """Write what is left over beside whole tiles as no more than it is, where other loops lie between the two of a tile.

    Inductor (torch 2.13) takes the loop within the outer one for the inner one. If that is no reduction, and the inner one is, it
    writes the rest of the outer one as a whole vector: ``torch.compile`` overwrites other results there, or the heap.
    """
    aggregate = cpp.CppKernelProxy.aggregate_reduction_buffers

    def aggregated(proxy: cpp.CppKernelProxy, inner_is_reduction: bool, outer: Any) -> None:
        kernel = proxy.kernels[0]
        if isinstance(kernel, cpp.CppTile2DKernel):
            nest: Any = proxy.loop_nest
            first, second = (nest.loops[place] for place in kernel.tiling_indices)
            inner_is_reduction = second.is_reduction and not first.is_reduction
        aggregate(proxy, inner_is_reduction, outer)

    with mock.patch.object(cpp.CppKernelProxy, "aggregate_reduction_buffers", aggregated):
        yield


@contextlib.contextmanager
def _indices_not_negative() -> Iterator[None]:
    """Drop multiples of a modulus from what is divided only where the rest is known to be no negative number.

    Inductor (torch 2.13) looks at signs of numbers alone, and C++ rounds towards zero: ``torch.compile`` reads before the start
    of memory for ``x.flatten().repeat_interleave(2).flip(0)`` with sizes that vary.
    """
    simplify = ModularIndexing.eval.__func__  # type: ignore[attr-defined]

    def apart(cls: Any, base: Any, divisor: Any, modulus: Any) -> Any:
        if isinstance(base, sympy.Add) and divisor == 1 and modulus != 1:
            rest = [term for term in base.args if functions.safe_gcd(term, modulus) != modulus]
            if not all(term.is_nonnegative for term in rest):
                return None
        return simplify(cls, base, divisor, modulus)

    sympy.core.cache.clear_cache()  # which knows what was simplified before
    with mock.patch.object(ModularIndexing, "eval", classmethod(apart)):
        yield


@contextlib.contextmanager
def _bytes_stay_bytes() -> Iterator[None]:
    """Have ``abs`` of a byte be a byte: C++ gives an ``int``, and 128 where eager gives -128 (Inductor of torch 2.13)."""
    absolute: Callable[[Any], str] = cpp.CppOverrides.abs

    def as_given(x: Any) -> str:
        return f"static_cast<std::decay_t<decltype({x})>>({absolute(x)})"

    with mock.patch.object(cpp.CppOverrides, "abs", staticmethod(as_given)):
        yield


@contextlib.contextmanager
def _casts_round() -> Iterator[None]:
    """Round where a graph casts a number to half precision, also for what reads it in the same loop.

    Inductor computes such numbers in float32, and rounds them as it stores them (torch 2.13): under ``torch.compile``
    ``x.bfloat16().float()`` is ``x``.
    """
    halves = (torch.bfloat16, torch.float16)
    operator = torch.ops.prims.convert_element_type.default
    convert: Callable[..., Any] = lowering.lowerings[operator]

    def rounded(x: Any, dtype: torch.dtype) -> Any:
        if dtype in halves and x.get_dtype() in (torch.float32, torch.float64):
            return lowering.to_dtype(x, dtype, copy=True, use_compute_types=False)
        return convert(x, dtype)

    with (
        mock.patch.dict(lowering.lowerings, {operator: rounded}),
        mock.patch.object(cpp.CppKernel, "cache_dtype_convert", return_value=None),
    ):
        yield


@contextlib.contextmanager
def _numbers_in_double() -> Iterator[None]:
    """Pass real numbers that are read off tensors (``x.sum().item()``) in ``double``: Inductor (torch 2.13) passes ``float``."""
    defined: Callable[..., Any] = common.KernelArgs.cpp_argdefs

    def in_double(arguments: common.KernelArgs, *given: Any) -> Any:
        names, calls, types = defined(arguments, *given)
        names = [name.replace("const float ", "const double ") for name in names]
        return names, calls, ["const double" if kind == "const float" else kind for kind in types]

    with mock.patch.object(common.KernelArgs, "cpp_argdefs", in_double):
        yield


@contextlib.contextmanager
def _quotients_rounded_rightly() -> Iterator[None]:
    """Round quotients of real numbers down as eager does, by their remainders: ``0.5 // 0.1`` is 4, for 0.1 is a little more.

    Inductor (torch 2.13) rounds the quotient, which is 5 as the nearest number: ``torch.compile`` gives that.
    """
    ops = virtualized.ops

    def quotient(a: Any, b: Any) -> Any:
        dtype = next(value.get_dtype() for value in (a, b) if isinstance(value, ir.IRNode))

        def rounded(a: Any, b: Any) -> Any:
            zero, half, one = (ops.constant(number, dtype) for number in (0, 0.5, 1))
            rest = ops.fmod(a, b)
            whole, plain = ops.truediv(ops.sub(a, rest), b), ops.div_rn(a, b)
            whole = ops.where(ops.lt(ops.mul(rest, ops.copysign(one, b)), zero), ops.sub(whole, one), whole)
            below = ops.floor(whole)
            nearest = ops.where(ops.gt(ops.sub(whole, below), half), ops.add(below, one), below)
            nearest = ops.where(ops.ne(whole, zero), nearest, ops.mul(plain, zero))
            return ops.where(ops.ne(b, zero), nearest, plain)

        return lowering.make_pointwise(rounded)(a, b)

    with mock.patch.object(lowering, "_div_rn", quotient):
        yield


@contextlib.contextmanager
def _powers_of_their_type() -> Iterator[None]:
    """Compute powers of a whole number (``2 ** k``) with the number as a tensor.

    AOTInductor (torch 2.13) passes numbers as ``double``: its result is ``float32``, whose digits do not suffice.
    """

    def power(number: Any, exponent: Any) -> Any:
        base = lowering.full([], number, dtype=exponent.get_dtype(), device=exponent.get_device())
        return lowering.fallback_pow_tensor_tensor(base, exponent)

    with mock.patch.object(lowering, "fallback_pow_scalar", power):
        yield


@contextlib.contextmanager
def _places_in_order() -> Iterator[None]:
    """Count the place of an extreme among several dimensions in their own order, whatever order loops take them in.

    Inductor (torch 2.13) counts steps of its loops where it takes a tensor for contiguous, and may order them otherwise later:
    ``torch.compile`` gives another place for ``x.mean(-1).argmax()`` where ``x`` is channels-last, and other gradients of a
    ``max_pool3d`` of transposed volumes, or writes them beyond the tensor.
    """
    create: Callable[..., Any] = ir.Reduction.create
    parameters = inspect.signature(create)

    def placed(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs).arguments
        load, sizes = call["inner_fn"], call["reduction_ranges"]

        def with_place(index: Any, reduced: Any) -> Any:
            value = load(index, reduced)
            if isinstance(value, tuple):
                return value
            place = sympy.S.Zero
            for size, one in zip(sizes, reduced, strict=True):
                place = place * size + sympy.expand(one)
            return value, virtualized.ops.index_expr(place, torch.int64)

        counted = call["reduction_type"] in ("argmax", "argmin") and len(sizes) > 1
        return create(**call | ({"inner_fn": with_place} if counted else {}))

    with mock.patch.object(ir.Reduction, "create", placed):
        yield


@contextlib.contextmanager
def _added_in_one_place() -> Iterator[None]:
    """Add a vector of numbers in one place: code is written for a vector of places, or not at all (``AssertionError``)."""
    store: Callable[..., None] = cpp.CppVecKernel.store
    index_expr: Callable[..., Any] = cpp.CppVecOverrides.index_expr

    def as_vector(index: sympy.Expr, dtype: torch.dtype) -> Any:
        found = index_expr(index, dtype)
        place = found.value if isinstance(found, virtualized.OpsValue) else found
        return place if place.is_vec else virtualized.V.kernel.broadcast(place)

    def stored(kernel: Any, name: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        adds = mock.patch.object(cpp.CppVecOverrides, "index_expr", staticmethod(as_vector))
        with adds if mode == "atomic_add" else contextlib.nullcontext():
            store(kernel, name, index, value, mode)

    with mock.patch.object(cpp.CppVecKernel, "store", stored):
        yield


@contextlib.contextmanager
def _smaller_of_any() -> Iterator[None]:
    """Take the smaller or larger of two sizes at the call where it is not known before.

    Inductor (torch 2.13) guards on it, raises (``x.diag()`` of a matrix whose two sizes vary), or takes the one that divides the
    other for the smaller, which ``n - 3`` beside 0 is not: gradients of ``x[-3:]`` did not compile.
    """

    def known(sizes: SizeVarAllocator, left: Any, right: Any) -> bool:
        return right == sys.maxsize or sizes.statically_known_leq(left, right)  # the former ends a slice that has no end

    def smaller(sizes: SizeVarAllocator, left: Any, right: Any) -> Any:
        if known(sizes, left, right):
            return left
        return right if known(sizes, right, left) else functions.Min(left, right)

    def larger(sizes: SizeVarAllocator, left: Any, right: Any) -> Any:
        if known(sizes, left, right):
            return right
        return left if known(sizes, right, left) else functions.Max(left, right)

    with mock.patch.multiple(SizeVarAllocator, evaluate_min=smaller, evaluate_max=larger):
        yield


@contextlib.contextmanager
def _pools_divided_rightly() -> Iterator[None]:
    """Call ATen's kernel for gradients of average pooling whose last window may reach over the edge (``ceil_mode``).

    Inductor (torch 2.13) divides them by the size of the whole window, also where padding counts as the forward does not:
    ``torch.compile`` gives wrong gradients there. And it raises where one number stands for all dimensions (``padding=(1,)``).
    """

    def rule(inductors: Callable[..., Any], kernel: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
        def lower(grad: Any, x: Any, size: Any, stride: Any, padding: Any, ceil_mode: bool, *rest: Any) -> Any:
            lists = [list(numbers) * (dimensions if len(numbers) == 1 else 1) for numbers in (size, stride, padding)]
            return (kernel if ceil_mode else inductors)(grad, x, *lists, ceil_mode, *rest)

        return lower

    kernels = {
        torch.ops.aten.avg_pool2d_backward.default: (lowering.fallback_avg_pool2d_backward, 2),
        torch.ops.aten.avg_pool3d_backward.default: (lowering.fallback_avg_pool3d_backward, 3),
    }
    rules = {operator: rule(lowering.lowerings[operator], *kernel) for operator, kernel in kernels.items()}
    with mock.patch.dict(lowering.lowerings, rules):
        yield


@contextlib.contextmanager
def _copies_of_expanded() -> Iterator[None]:
    """Let values be written into a copy of a tensor whose elements share memory (``x.expand(4, -1).index_add(0, i, y)``), and of
    one whose own elements they are (``x.as_strided_scatter(x[:5], (5,), (1,), 1)``).

    Inductor (torch 2.13) writes into the tensor itself, if nothing else reads it, and so each value to all that share its place,
    or what it has written before: ``torch.compile`` gives wrong results there.
    """

    def apart(operation: reinplace.InplaceableOp) -> Callable[[torch.fx.Node], bool]:
        def check(node: torch.fx.Node) -> bool:
            target: Any = node.args[0]
            return operation.extra_check(node) and not (_may_meet_itself(target.meta["val"]) or _is_of_itself(node, target))

        return check

    known = reinplace.inplaceable_ops
    writes: list[Callable[..., Any]] = [
        torch.ops.aten.index_put.default,
        torch.ops.aten._unsafe_index_put.default,
        reinplace._generalized_scatter,
    ]
    checked = {write: replace(known[write], extra_check=apart(known[write])) for write in writes}
    with mock.patch.dict(known, checked):
        yield


def _is_of_itself(node: torch.fx.Node, target: torch.fx.Node) -> bool:
    """Whether what is written to a part of a tensor is another part of it."""
    if node.target is not reinplace._generalized_scatter:
        return False
    source: Any = node.args[1]
    return without_views(source) is without_views(target)


def _may_meet_itself(value: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be one in memory; of an expanded one, if only its size may be more than 1."""
    expanded = (n for n, step in zip(value.shape, value.stride(), strict=True) if statically_known_true(step == 0))
    return meets_itself(value) or not all(statically_known_true(n == 1) for n in expanded)


@contextlib.contextmanager
def _writes_read_after_fusion() -> Iterator[None]:
    """Have loops that are made anew, to be fused with others, still come after the writes whose results they read.

    Inductor (torch 2.13) tells what such loops read from their bodies, which name a buffer as it was before all writes, and
    forgets to put the writes' names back: where it finds another order better, they run before the write. ``torch.compile``
    gives wrong gradients there.
    """
    recompute = SchedulerNode.recompute_size_and_body

    def renamed(node: Any, *args: Any, **kwargs: Any) -> None:
        recompute(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    with mock.patch.object(SchedulerNode, "recompute_size_and_body", renamed):
        yield


@contextlib.contextmanager
def _writes_in_place() -> Iterator[None]:
    """Write all of a tensor to the memory where it is: ``y = x[:2] * 3; x[x > 0] = 1``, ``x.diagonal().copy_(y); x[x > 0] = 1``.

    Inductor (torch 2.13) puts new values in the tensor's place, and what finds the tensor by that place finds them: views of it
    that are read by then or not until the code is written, and earlier writes to its parts. ``torch.compile`` gives three times
    the new values in ``y``, and what the earlier write wrote; or it raises, where the new values are computed from such a view.
    """
    mutate: Callable[..., Any] = lowering.mutate_to

    def written(changed: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        box = changed.data if isinstance(changed, ir.TensorBox) else changed
        if not (isinstance(box, ir.StorageBox) and isinstance(box.data, ir.Buffer)):
            return mutate(changed, value, *args, **kwargs)
        with mock.patch.object(box, "is_input_buffer", return_value=True):  # whose place stays what it is
            return mutate(changed, value, *args, **kwargs)

    with mock.patch.object(lowering, "mutate_to", written):
        yield


@contextlib.contextmanager
def _written_apart_from_concatenations() -> Iterator[None]:
    """Copy what is concatenated where it, or the concatenation, is written: ``y = torch.cat([x, z]); x.diagonal().mul_(2)``.

    Inductor (torch 2.13) has a tensor lie in its concatenation, and writes to it there: ``torch.compile`` doubles the diagonal of
    ``y``, too.
    """
    concatenate: Callable[..., Any] = ir.ConcatKernel.create

    def concatenated(inputs: Sequence[Any], dim: int) -> Any:
        node = virtualized.V.graph.current_node
        written = any(_is_written(without_views(value)) for value in (node, *node.all_input_nodes))
        return concatenate([lowering.clone(value) for value in inputs] if written else inputs, dim)

    with mock.patch.object(ir.ConcatKernel, "create", concatenated):
        yield


def _is_written(value: torch.fx.Node) -> bool:
    """Whether an operator writes to a value in place, or to a view of it."""
    return any(
        (isinstance(user.target, torch._ops.OpOverload) and user.target._schema.is_mutable)
        or (without_views(user) is not user and _is_written(user))
        for user in value.users
    )


@contextlib.contextmanager
def _defaults_passed() -> Iterator[None]:
    """Record defaults of a kernel's keyword arguments where code passes them: the difference of complex numbers has ``alpha=1``.

    AOTInductor (torch 2.13) passes such numbers and does not record that it does, and the call raises an error. So does one with
    an empty list (``hash_tensor``'s ``dim``), which it loses: it is refused when it is compiled.
    """
    export: Callable[[ir.FallbackKernel], Any] = ir.FallbackKernel.export_extern_kernel_node

    def recorded(kernel: ir.FallbackKernel) -> Any:
        unflatten: Callable[..., Any] = kernel.unflatten_args

        def with_defaults(*values: Any) -> Any:
            args, kwargs = unflatten(*values)
            known = {name: kernel.get_kwargs_value(name, **kwargs) for name in kernel.ordered_kwargs_for_cpp_kernel}
            return args, kwargs | {name: value for name, value in known.items() if value is not None}

        with mock.patch.object(kernel, "unflatten_args", with_defaults):
            passed = export(kernel)
        if any(isinstance(value, list | tuple) and not value for value in passed or ()):
            raise NotImplementedError("AOTInductor passes no empty list to a kernel")
        return passed

    with mock.patch.object(ir.FallbackKernel, "export_extern_kernel_node", recorded):
        yield
