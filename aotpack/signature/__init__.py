"""Turns AOTAutograd's metadata into a method's calling convention, as plain data.

The input is a partitioned joint graph. The output is the method's graphs in the bundle's calling
convention, with everything that the loader must do around them. What a bundle cannot express is
refused here. The parts build on each other in the order of a call: inputs, primals, mutations,
results, backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs
from torch.fx import Node

from aotpack_loader.format import schema
from aotpack_loader.format.subclasses import leaf_sizes

from .. import partition
from .._torch.api import fake_tensors
from .._torch.tracing import aot_autograd
from ..graph import source_line
from ..graph.expressions import bound, render, size_expression
from ..model import pytrees
from . import subclass_leaves
from .backward import ReturnedValues, describe_backward, saved_bytes
from .convention import NOT_STORED, Convention
from .forward_outputs import ForwardOutputs
from .inputs import argument_values, describe_inputs
from .mutations import describe_mutations, describe_touched, written_in_checkpoints
from .partitioned import PartitionedMethod, UserCall, fold_subclasses
from .primals import describe_primals, mark_reads_from_storage_start, refuse_shared_state
from .result_sources import describe_sources
from .results import describe_results, non_differentiable
from .sizes import DataDependentSizes

__all__ = ["Convention", "UserCall", "argument_values", "assemble"]


def assemble(joint: aot_autograd.Joint, parts: partition.Partitioned, call: UserCall) -> Convention:
    """Compute the calling convention of one method. The graphs of ``parts`` are edited in place.

    Raises:
        UnsupportedError: names every construct that a bundle cannot reproduce.
    """
    partitioned = fold_subclasses(joint, parts, call)
    _refuse_unsupported_inputs(partitioned)
    inputs = describe_inputs(partitioned)
    partitioned, primals = describe_primals(partitioned, inputs)
    sizes, outputs = DataDependentSizes(partitioned, inputs.leaves), ForwardOutputs()
    mutations = describe_mutations(partitioned, primals, outputs)
    results = describe_results(partitioned, primals, sizes, outputs)
    backward = describe_backward(partitioned, primals, sizes, outputs, ReturnedValues(mutations, results.values))
    output_symbols = sizes.describe(outputs)
    partitioned.raise_problems()
    output_subclasses, gradient_subclasses = _subclasses(partitioned, outputs.nodes), _subclasses(partitioned, backward.outputs)
    size_inputs = _set_outputs(partitioned, outputs.nodes, backward.outputs, [*partitioned.subclass_sizes, *primals.sizes])
    leaves = mark_reads_from_storage_start(partitioned, primals, backward.saved_values, inputs.leaves)
    partitioned.raise_problems()
    tree, updates = _result_tree(call)
    described = backward.described
    if described is not None:
        sources = describe_sources(call.returned.sources, results.described, mutations)
        described = structs.replace(described, subclasses=gradient_subclasses, result_sources=sources)
    method = schema.Method(
        serves=[],
        forward=NOT_STORED,
        inputs=inputs.tree,
        leaves=leaves,
        outputs=tree,
        updates=updates,
        results=results.described,
        primals=list(primals.described),
        num_outputs=len(outputs.nodes),
        symbols=_symbols(partitioned, leaves),
        constraints=_constraints(partitioned),
        mutations=mutations,
        touched=describe_touched(partitioned, primals, mutations),
        output_symbols=output_symbols,
        non_differentiable=non_differentiable(mutations, results.described),
        subclasses=output_subclasses,
        sizes=[size_expression(size.meta["val"], partitioned.shape_env) for size in size_inputs],
        backward=described,
    )
    partitioned.raise_problems()
    return Convention(
        forward=partitioned.parts.forward,
        backward=partitioned.parts.backward,
        method=method,
        shape_env=partitioned.shape_env,
        saved_bytes=saved_bytes(primals, backward.saved_values),
        written_in_checkpoints=written_in_checkpoints(partitioned, primals),
    )


def _refuse_unsupported_inputs(partitioned: PartitionedMethod) -> None:
    metadata = partitioned.metadata
    refuse_shared_state(partitioned)
    if metadata.num_outputs_rng_offset or metadata.is_rng_op_functionalized:
        partitioned.refuse("graph", "functionalised random state")
    if metadata.grad_enabled_mutation is not None:
        partitioned.refuse("model", "changes the gradient mode and does not restore it before it returns")
    partitioned.raise_problems()


def _set_outputs(
    partitioned: PartitionedMethod, outputs: Sequence[Node], gradients: Sequence[Node], sizes: Sequence[Node]
) -> list[Node]:
    """Give both graphs their outputs, and return the size inputs that the forward uses."""
    forward, backward = partitioned.parts.forward, partitioned.parts.backward
    partition.set_outputs(forward, subclass_leaves.flat(outputs))
    used = subclass_leaves.keep_used_sizes(forward.graph, sizes)
    forward.recompile()
    if backward is not None:
        partition.set_outputs(backward, subclass_leaves.flat(gradients))
    return used


def _result_tree(call: UserCall) -> tuple[schema.Tree, list[schema.Update]]:
    """Return the tree of the model's result, and the updates of the caller's containers that it changes."""
    spec = call.returned.spec
    if not call.containers:
        return pytrees.describe(spec, "result")[0], []
    result, changes = aot_autograd.tree_children(spec)
    return call.containers.trees(pytrees.describe(result, "result")[0], pytrees.describe(changes, "changed arguments")[0])


def _subclasses(partitioned: PartitionedMethod, outputs: Sequence[Node]) -> list[schema.Subclass | None]:
    """Return the subclass that each output of a graph becomes.

    Empty if no output is a subclass.
    """
    found = [subclass_leaves.describe(node, source_line(node) or node.name, partitioned.shape_env) for node in outputs]
    return found if any(found) else []


def _symbols(partitioned: PartitionedMethod, leaves: Sequence[schema.InputLeaf]) -> list[schema.Symbol]:
    env = partitioned.shape_env
    if env is None:
        return []
    names = {dim for leaf in leaves for dim in leaf_sizes(leaf) if isinstance(dim, str)}
    symbols = []
    for symbol in sorted({s for name in names for s in fake_tensors.symbols_of(env, name)}, key=str):
        if str(symbol) not in names:
            partitioned.refuse(str(symbol), "a size that appears only inside an expression")
            continue
        limits = env.var_to_range[symbol]
        symbols.append(schema.Symbol(str(symbol), bound(limits.lower) or 0, bound(limits.upper), fake_tensors.hint(env, symbol)))
    return symbols


def _constraints(partitioned: PartitionedMethod) -> list[str]:
    env = partitioned.shape_env
    if env is None:
        return []
    found = [env.simplify(guard.expr) for guard in env.guards]
    return sorted({render(expr) for expr in found if not expr.is_Boolean or expr not in (True, False)} - {"True"})
