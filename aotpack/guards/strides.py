"""Finds what in a method depends on its arguments' strides, by running the model with other strides.

A call copies an argument whose strides differ from those at build, and runs the graphs on the
copy. That is right only if the model does not depend on strides. Eager may copy where it otherwise
takes a view (``contiguous``, ``reshape``, ``ravel``). Writes to that copy do not reach the
argument, and if the copy is returned, it is not a view of the argument. ``as_strided`` computes
addresses from offsets and strides, so it depends on the layout as well. A model that writes to its
arguments, returns views of them or calls ``as_strided`` therefore runs on fake tensors with
several layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from msgspec import structs

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from .. import signature
from .._torch.api import fake_tensors, messages
from .._torch.api.torch_types import StorageWeakRef
from .._torch.tracing import fake_run
from .._torch.tracing.state_assignments import kept_state_changes
from ..capture.dry_run import repeat
from ..capture.inputs.aliasing import dense_stride, like, replaced
from ..capture.returned import result_leaves
from ..graph import views

Strides = Mapping[int, Sequence[int]]
"""Strides of arguments, by leaf number."""


@dataclass(frozen=True)
class Sensitive:
    """The arguments and results that depend on layouts, by number.

    Args:
        leaves: arguments that the model writes to differently with other strides, or whose layout
            ``as_strided`` uses.
        copied: results that are copies for every other layout (``contiguous``).
        reshaped: results that are copies if no view is possible (``reshape``).
    """

    leaves: frozenset[int] = frozenset()
    copied: frozenset[int] = frozenset()
    reshaped: frozenset[int] = frozenset()


def sensitive(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    convention: signature.Convention,
    gaps: Collection[int],
) -> Sensitive:
    """Return what in a method depends on the strides of its arguments.

    Args:
        model: the model, in the mode in which it was traced. Gradients must be on or off as at
            tracing.
        args: the positional example arguments.
        kwargs: the example's keyword arguments.
        convention: the method.
        gaps: leaf numbers of arguments that were traced as dense and have gaps.
    """
    flat = pytree.tree_leaves((args, kwargs))
    written, returned = _exposed(convention.method)
    plain = {i: x for i, x in enumerate(flat) if _has_layout(convention.method.leaves[i], x)}
    traced = {i: dense_stride(tensor) if i in gaps else tensor.stride() for i, tensor in plain.items()}
    # A copy in this layout may be a view in another layout, and the model may write to it.
    counts = _reads_by_storage_offset(convention)
    tensors = {i: x for i, x in plain.items() if counts or i in written | returned or traced[i] != _contiguous(x.shape)}
    if not tensors:
        return Sensitive()
    first: _Seen | None = None
    leaves: set[int] = set()
    copied: dict[str, frozenset[int]] = {}
    for kind, other in _others(tensors, traced, turned=counts):
        first = first or _run(model, args, kwargs, traced)
        second = _run(model, args, kwargs, {**traced, **other})
        if first is None or second is None:
            continue  # the model rejects this layout, or fake tensors cannot show what it does
        if first.operators != second.operators:
            leaves |= written & other.keys()
        if counts and first.address_computations != second.address_computations:
            leaves |= other.keys()
        leaves |= (first.touched ^ second.touched) & other.keys()
        owners = zip(first.results, second.results, strict=True)
        copied[kind] = frozenset(i for i, (one, two) in enumerate(owners) if one in other and one not in written and one != two)
    always = copied.get("doubled", frozenset())
    return Sensitive(frozenset(leaves), always, copied.get("apart", frozenset()) - always)


def marked(convention: signature.Convention, found: Sensitive, gaps: Collection[int]) -> signature.Convention:
    """Return the method with its sensitive arguments and results marked.

    Raises:
        UnsupportedError: a sensitive argument is in ``gaps``: the example itself has other strides
            than the trace.
    """
    method = convention.method
    if refused := [method.leaves[i].path for i in sorted(found.leaves & set(gaps))]:
        raise UnsupportedError(
            "Arguments with dynamic sizes are slices of larger tensors, which a call copies first. The model writes to the "
            "result of contiguous() or reshape(), which copies a slice only, or it uses strides (as_strided).",
            [Problem(path, "is a slice of a larger tensor") for path in refused],
            hint="Build with a contiguous example, or with sizes that do not vary.",
        )
    leaves = [structs.replace(leaf, fixed_stride=True) if i in found.leaves else leaf for i, leaf in enumerate(method.leaves)]
    results = [structs.replace(r, laid_out=True) if i in found.copied else r for i, r in enumerate(method.results)]
    results = [structs.replace(r, reshaped=True) if i in found.reshaped else r for i, r in enumerate(results)]
    results = [_unshared_if_copied(result, results) for result in results]
    return convention.changed(leaves=leaves, results=results)


def _unshared_if_copied(result: schema.Result, results: Sequence[schema.Result]) -> schema.Result:
    """Return the result without ``shared`` if the alias that it shares views with differs in ``laid_out``."""
    if not isinstance(result, schema.AliasResult) or result.shared is None:
        return result
    other = results[result.shared.result]
    return result if getattr(other, "laid_out", False) == result.laid_out else structs.replace(result, shared=None)


def _reads_by_storage_offset(convention: signature.Convention) -> bool:
    graphs = [graph for graph in (convention.forward, convention.backward) if graph is not None]
    return any(node.target in views.AS_STRIDED for graph in graphs for node in graph.graph.nodes)


def _exposed(method: schema.Method) -> tuple[set[int], set[int]]:
    """Return two sets of leaf numbers: arguments that are written to, and arguments that are returned.

    An argument counts as returned if a result is a view of it.
    """
    primals = method.primals
    seen = [r.primal for r in method.results if isinstance(r, (schema.InputResult, schema.AliasResult))]

    def leaves(numbers: Sequence[int | None]) -> set[int]:
        found = [primals[i] for i in numbers if i is not None]
        return {primal.leaf for primal in found if isinstance(primal, schema.InputPrimal)}

    return leaves([mutation.primal for mutation in method.mutations]), leaves(seen)


def _has_layout(leaf: schema.InputLeaf, value: Any) -> bool:
    return isinstance(leaf, schema.TensorLeaf) and leaf.subclass is None and leaf.stride is not None and value.numel() > 1


def _others(tensors: Mapping[int, torch.Tensor], traced: Strides, *, turned: bool) -> Iterator[tuple[str, Strides]]:
    """Yield the layouts to try, with their names.

    ``own``: the example's strides. ``doubled``: gaps that leave all views possible. ``apart``:
    gaps between all rows as well. ``rows``: row-major. ``columns``: column-major, with ``turned``
    only.
    """
    kinds: dict[str, Strides] = {
        "own": {i: tensor.stride() for i, tensor in tensors.items()},
        "doubled": {i: tuple(2 * step for step in traced[i]) for i in tensors},
        "apart": {i: _spread(tensor.shape, traced[i]) for i, tensor in tensors.items()},
        "rows": {i: _contiguous(tensor.shape) for i, tensor in tensors.items()},
        "columns": {i: _contiguous(tensor.shape[::-1])[::-1] for i, tensor in tensors.items() if turned},
    }
    for kind, strides in kinds.items():
        if other := {i: stride for i, stride in strides.items() if tuple(stride) != tuple(traced[i])}:
            yield kind, other


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _spread(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return strides with gaps and the dimensions in the same order.

    No two dimensions can be merged into one, and no two elements are adjacent in memory.
    """
    step, found = 2, [0] * len(shape)
    for dim in sorted(range(len(shape)), key=lambda dim: (stride[dim], -dim)):
        found[dim], step = step, step * (shape[dim] + 1)
    return tuple(found)


class _Seen(NamedTuple):
    """What a run did: its operators in order, arguments whose version counters moved, and each result's storage.

    ``results`` has for each result the leaf number of the argument whose storage it shares.
    """

    operators: list[fake_run.OperatorCall]
    touched: frozenset[int]
    results: list[int | None]

    @property
    def address_computations(self) -> list[fake_run.OperatorCall]:
        """The operators that compute addresses from strides, such as ``as_strided``."""
        return [called for called in self.operators if called.strides is not None]


def _run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], strides: Strides) -> _Seen | None:
    """Run the model on fake tensors, some of them with other strides.

    Return None if that fails.
    """
    mode, operators = fake_tensors.fake_mode_with_shapes(), list[fake_run.OperatorCall]()
    flat = pytree.tree_leaves((args, kwargs))
    with mode:
        made = {id(flat[i]): like(flat[i], stride=stride) for i, stride in strides.items()}
    call_inputs = replaced(args, kwargs, {i: made[id(leaf)] for i, leaf in enumerate(flat) if id(leaf) in made})
    try:
        with messages.quiet_torch_logs(), repeat.unchanged(model), kept_state_changes(model):
            run = fake_run.run_on_fake_tensors(mode, model, *call_inputs, operators=operators)
    except Exception as error:  # eager rejects this layout (view), or the model depends on data
        repeat.refuse_if_broken(error)
        return None
    owners = [(StorageWeakRef(run.leaves[i].untyped_storage()), i) for i in strides]
    results = [_owner(result, owners) for result in result_leaves(run.result)]
    return _Seen(operators, run.touched.leaves, results)


def _owner(result: Any, owners: Sequence[tuple[StorageWeakRef, int]]) -> int | None:
    if not isinstance(result, torch.Tensor) or not fake_tensors.is_plain_tensor(result) or result.layout != torch.strided:
        return None
    storage = StorageWeakRef(result.untyped_storage())
    return next((i for other, i in owners if other == storage), None)
