"""Fixes of the order and the target of writes in Inductor's code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir, lowering, virtualized
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.fx_passes import reinplace
from torch._inductor.scheduler import SchedulerNode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...api.fake_tensors import overlaps_itself
from ...api.nodes import without_views
from ...api.patching import attribute_set, patched, replaced, with_items
from ..applying import count_call


@contextlib.contextmanager
def copy_expanded() -> Iterator[None]:
    """Write into a copy if a tensor's elements share memory, or if the written values are its own
    elements.

    Inductor writes into the tensor itself if nothing else reads it. Each value then goes to all
    elements at the same address. Or it is overwritten before it is read
    (``x.as_strided_scatter(x[:5], (5,), (1,), 1)``).
    """

    def is_copied(node: torch.fx.Node) -> bool:
        count_call("inductor-write-into-expanded")
        target: Any = node.args[0]
        return _may_overlap_itself(target.meta["val"]) or _reads_target(node, target)

    writes = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default, reinplace._generalized_scatter)
    with with_items("inductor-write-into-expanded", reinplace, "inplaceable_ops", _in_place_unless(is_copied, *writes)):
        yield


@contextlib.contextmanager
def copy_complex() -> Iterator[None]:
    """Write to a part of a complex tensor in a copy, by ATen's ``*_scatter``.

    Inductor compiles no operators of complex tensors. It calls a kernel for a view, and does not know that a write
    to the kernel's result changes the viewed tensor. Whatever reads that tensor may therefore come before the write.
    """
    name = "inductor-write-into-complex"
    mutates = reinplace.scatter_always_uses_mutation

    def is_complex(node: torch.fx.Node) -> bool:
        return bool(node.meta["val"].is_complex())

    def mutating(node: torch.fx.Node) -> bool:
        if is_complex(node):
            count_call(name)
            return False
        return mutates(node)

    with (
        patched(name, reinplace, "scatter_always_uses_mutation", mutating),
        with_items(name, reinplace, "inplaceable_ops", _in_place_unless(is_complex, reinplace._generalized_scatter)),
    ):
        yield


def _in_place_unless(
    is_copied: Callable[[torch.fx.Node], bool], *writes: Callable[..., Any]
) -> dict[Callable[..., Any], reinplace.InplaceableOp]:
    """Entries of operators that write in place only if ``is_copied`` is false."""

    def entry(known: reinplace.InplaceableOp) -> reinplace.InplaceableOp:
        return replace(known, extra_check=lambda node: not is_copied(node) and known.extra_check(node))

    return {write: entry(reinplace.inplaceable_ops[write]) for write in writes}


def _reads_target(node: torch.fx.Node, target: torch.fx.Node) -> bool:
    """Whether the values written to a part of a tensor are another part of it."""
    if node.target is not reinplace._generalized_scatter:
        return False
    source: Any = node.args[1]
    return without_views(source) is without_views(target)


def _may_overlap_itself(value: torch.Tensor) -> bool:
    """Whether two elements of a tensor may share an address; an expanded dimension counts unless
    its size is known to be 1.
    """
    expanded = (n for n, step in zip(value.shape, value.stride(), strict=True) if statically_known_true(step == 0))
    return overlaps_itself(value) or not all(statically_known_true(n == 1) for n in expanded)


@contextlib.contextmanager
def fix_write_order() -> Iterator[None]:
    """Keep loops that are recomputed for fusion after the writes whose results they read.

    Inductor recomputes the reads of such loops from their bodies, which name a buffer as it was
    before all writes. It does not restore the names of the writes. The loops may therefore be
    scheduled before the write.
    """
    recompute = SchedulerNode.recompute_size_and_body

    def renamed(node: Any, *args: Any, **kwargs: Any) -> None:
        recompute(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    with patched("inductor-write-order-after-fusion", SchedulerNode, "recompute_size_and_body", renamed):
        yield


@contextlib.contextmanager
def write_in_place() -> Iterator[None]:
    """Write all elements of a tensor into its own memory.

    ``mutate_to`` rebinds the storage box. Views taken earlier but generated later then read the new
    values, and earlier writes to parts of the tensor come after.
    """
    mutate: Callable[..., Any] = lowering.mutate_to

    def written(changed: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        box = changed.data if isinstance(changed, ir.TensorBox) else changed
        if not (isinstance(box, ir.StorageBox) and isinstance(box.data, ir.Buffer)):
            return mutate(changed, value, *args, **kwargs)
        count_call("inductor-mutate-in-place")
        with attribute_set(box, "is_input_buffer", lambda: True):  # an input's buffer is written, never rebound
            return mutate(changed, value, *args, **kwargs)

    with replaced("inductor-mutate-in-place", lowering, "mutate_to", written):
        yield


@contextlib.contextmanager
def keep_results_of_loops() -> Iterator[None]:
    """Give no memory to a result that is the carried value of a loop, written in place.

    Inductor allocates it after the loop when a later kernel takes over its memory.
    """
    allocate: Callable[[Any, ir.Buffer], None] = PythonWrapperCodegen.codegen_allocation

    def allocated(wrapper: Any, buffer: ir.Buffer) -> None:
        if isinstance(buffer, ir.MutationOutput) and not isinstance(buffer.layout, ir.NoneLayout):
            count_call("inductor-results-of-loops")
            wrapper.allocated.add(buffer.get_name())
        else:
            allocate(wrapper, buffer)

    with replaced("inductor-results-of-loops", PythonWrapperCodegen, "codegen_allocation", allocated):
        yield


@contextlib.contextmanager
def copy_written_concatenations() -> Iterator[None]:
    """Copy the inputs of a concatenation if one of them, or the concatenation, is written to.

    Inductor stores an input inside its concatenation, and writes to it there.
    """
    concatenate: Callable[..., Any] = ir.ConcatKernel.create

    def concatenated(cls: Any, inputs: Sequence[Any], dim: int) -> Any:
        node = virtualized.V.graph.current_node
        if not any(_is_written(without_views(value)) for value in (node, *node.all_input_nodes)):
            return concatenate(inputs, dim)
        count_call("inductor-write-to-concatenated")
        return concatenate([lowering.clone(value) for value in inputs], dim)

    with replaced("inductor-write-to-concatenated", ir.ConcatKernel, "create", concatenated):
        yield


def _is_written(value: torch.fx.Node) -> bool:
    """Whether an operator writes in place to a value or to a view of it."""
    return any(
        (isinstance(user.target, torch._ops.OpOverload) and user.target._schema.is_mutable)
        or (without_views(user) is not user and _is_written(user))
        for user in value.users
    )
