"""Describes results: those that the forward graph computes, and views that the loader rebuilds."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from aotpack_loader.format import schema

from .._torch.api.torch_types import OutputType, statically_known_true
from .._torch.tracing import aot_autograd
from ..capture.inputs.synthetic_bases import count_twins, returned_argument
from ..graph import source_line, views
from ..graph.expressions import size_expression
from ..graph.literals import NOT_A_LITERAL, literal_argument
from . import subclass_leaves
from .forward_outputs import ForwardOutputs
from .mutations import geometry_of
from .partitioned import PartitionedMethod
from .primals import Primals, copy_of
from .shared_views import share_views, with_detach
from .sizes import DataDependentSizes

_OUT = OutputType
FRESH = (_OUT.non_alias, _OUT.unsafe_view_alias, _OUT.custom_function_view)
"""The kinds of results whose backward is in the graph. Others are rebuilt as views."""


@dataclass(frozen=True)
class Results:
    """The results, and for each the value of the forward graph that it is or is a view of."""

    described: list[schema.Result]
    values: Sequence[Any]


def describe_results(
    partitioned: PartitionedMethod, primals: Primals, sizes: DataDependentSizes, outputs: ForwardOutputs
) -> Results:
    """Describe the results, and add fresh results and bases of aliases to the forward's outputs."""
    found = _Results(partitioned, primals, sizes, outputs, list(partitioned.result_values))
    results, rebuilt = found.describe()
    return Results(share_views(partitioned, *with_detach(partitioned, results, rebuilt)), found.values)


def non_differentiable(mutations: Sequence[schema.Mutation], results: Sequence[schema.Result]) -> list[int]:
    """Return the outputs passed to autograd that carry no gradient."""
    differentiable = {m.output for m in mutations if m.requires_grad}
    plain = {m.output for m in mutations}
    for result in results:
        if isinstance(result, schema.FreshResult):
            plain.add(result.output)
            if result.requires_grad:
                differentiable.add(result.output)
        elif isinstance(result, schema.AliasResult) and result.output is not None:
            (differentiable if result.requires_grad else plain).add(result.output)
    return sorted(plain - differentiable)


class _ReplayedView(NamedTuple):
    """A view, as steps from ``origin``.

    That is result ``base``, or no result if ``base`` is None. ``requires_grad``: it inherits that from its
    origin, and has no history.
    """

    origin: Node
    base: int | None
    steps: list[schema.ViewStep]
    requires_grad: bool = False


@dataclass(frozen=True)
class _Results:
    """Describes results.

    ``values`` are those of the forward graph. ``positions`` maps each fresh result to its position
    among the forward's outputs.
    """

    partitioned: PartitionedMethod
    primals: Primals
    sizes: DataDependentSizes
    outputs: ForwardOutputs
    values: list[Any]
    positions: dict[int, int] = field(default_factory=dict)

    def describe(self) -> tuple[list[schema.Result], set[int]]:
        """Return the results, and the indices of those that are rebuilt as views without gradients."""
        output_info = self.partitioned.metadata.output_info
        nodes, bases = list(self.partitioned.result_values), self.partitioned.base_values
        rebuilt = self._views_without_gradient(nodes)
        results: list[schema.Result | None] = [None] * len(nodes)
        for i, (info, node) in enumerate(zip(output_info, nodes, strict=True)):
            if i not in rebuilt:
                results[i] = self._plain_result(info, node, i)
        base_positions = [self.outputs.add(base) for base in bases if isinstance(base, Node)]
        origins: dict[Node, int] = {}
        for i, view in rebuilt.items():
            results[i] = self._rebuilt_result(view, origins)
        for i, (info, node) in enumerate(zip(output_info, nodes, strict=True)):
            if results[i] is None and isinstance(node, Node):
                results[i] = self._alias_of_intermediate(info, node, nodes, bases, base_positions)
        self._refuse_hooked_views(results)
        return [result for result in results if result is not None], set(rebuilt)

    def _refuse_hooked_views(self, results: Sequence[schema.Result | None]) -> None:
        """Views are rebuilt outside the graphs, so their gradients pass neither hooks nor functions of the model's."""
        for i in sorted(self.partitioned.call.returned.hooked):
            if isinstance(result := results[i], schema.AliasResult) and result.history:
                where = source_line(self.partitioned.result_values[i]) or f"result {i}"
                message = "returns a view, and a hook or an autograd.Function lies between it and its base; clone the view"
                self.partitioned.refuse(where, message)

    def _views_without_gradient(self, nodes: Sequence[Any]) -> dict[int, _ReplayedView]:
        """Return the results without gradient that are views of another result, or of one value together with others.

        AOTAutograd treats them as new tensors, because it makes no difference to autograd. It treats the
        only view of a value so, too, which would give one that is made under ``no_grad`` a history.
        """
        found: dict[int, _ReplayedView] = {}
        returned, output_info = self.partitioned.call.returned, self.partitioned.metadata.output_info
        for base, leaves in ((family.base, family.views) for family in returned.families):
            members = [i for i in leaves if self._is_computed(i, nodes[i]) and not output_info[i].requires_grad]
            origin = None
            if base is not None and self._is_computed(base, nodes[base]):
                origin = nodes[base]
            elif base is None and len({returned.same.get(i, i) for i in members}) > 1:
                origin = views.common_root([nodes[i] for i in members])
            if origin is None or (origin.op in ("placeholder", "get_attr") and origin not in self.primals.nodes):
                continue
            for i in members:
                steps = views.steps_between(origin, nodes[i], self.partitioned.shape_env)
                steps = self._steps_from_later(origin, nodes[i]) if steps is None else steps
                if steps is not None and all(map(self.sizes.is_known, views.sizes_in(steps))):
                    found[i] = _ReplayedView(origin, base, steps)
        for i, (info, node) in enumerate(zip(output_info, nodes, strict=True)):
            if not self._is_computed(i, node) or _has_history(info):
                continue
            origin = views.root(node)
            steps = views.steps_between(origin, node, self.partitioned.shape_env)
            if steps and origin.op == "call_function" and all(map(self.sizes.is_known, views.sizes_in(steps))):
                found[i] = _ReplayedView(origin, None, steps, requires_grad=True)
        return found

    def _rebuilt_result(self, view: _ReplayedView, origins: dict[Node, int]) -> schema.AliasResult:
        """``origins``: positions of the outputs that were added for rebuilt views."""
        if view.base in self.positions:
            return schema.AliasResult(view.steps, output=self.positions[view.base], history=False)
        if view.origin in self.primals.nodes:
            return schema.AliasResult(view.steps, primal=self.primals.nodes.index(view.origin), history=False)
        if view.origin not in origins:
            origins[view.origin] = self.outputs.add(view.origin)
        return schema.AliasResult(view.steps, output=origins[view.origin], requires_grad=view.requires_grad, history=False)

    def _steps_from_later(self, origin: Node, view: Node) -> list[schema.ViewStep] | None:
        """Return the steps of a view that was created before its base changed sizes in place, for example by ``t_()``."""
        root = views.common_root([origin, view])
        if root is None:
            return None
        now, before = origin.meta["val"], root.meta["val"]
        steps = views.steps_between(root, view, self.partitioned.shape_env)
        same = statically_known_true(now.numel() == before.numel())
        if steps is None or not same or not statically_known_true(now.storage_offset() == before.storage_offset()):
            return None
        return [views.same_start_step(before, self.partitioned.shape_env), *steps]

    def _is_computed(self, i: int, node: Any) -> bool:
        """Whether result ``i`` is a dense plain tensor that AOTAutograd treats as new."""
        new = isinstance(node, Node) and self.partitioned.metadata.output_info[i].output_type in FRESH
        return new and i not in self.partitioned.joint.sparse and not subclass_leaves.is_folded(node)

    def _plain_result(self, info: Any, node: Any, i: int) -> schema.Result | None:
        """Describe result ``i``; None for an alias of an intermediate, which needs all fresh results first."""
        if not isinstance(node, Node):
            return self._literal_result(node, i)
        value = node.meta["val"]
        if isinstance(value, torch.SymInt) and self.sizes.is_known(size := size_expression(value, self.partitioned.shape_env)):
            return schema.SizeResult(size)
        if not isinstance(value, torch.Tensor):
            return schema.NumberResult(self.outputs.add(node))
        if info.output_type in FRESH:
            return self._fresh_result(info, node, i)
        if info.output_type == _OUT.is_input:
            return schema.InputResult(self.primals.index(info.base_idx))
        if info.output_type == _OUT.alias_of_input:
            return self._alias_of_input(info, node)
        return None

    def _fresh_result(self, info: Any, node: Node, i: int) -> schema.Result:
        sparse_dim = self.partitioned.joint.sparse.get(i)
        if node in self.primals.nodes:
            if self.partitioned.parts.backward is None and sparse_dim is None:
                return schema.InputResult(self.primals.nodes.index(node))
            node = copy_of(self.partitioned, self.primals, node)
            self.values[i] = node
        position = self.positions[i] = self.outputs.add(node)
        return schema.FreshResult(position, info.requires_grad, self._is_own(i, info, node), sparse_dim)

    def _is_own(self, i: int, info: Any, node: Node) -> bool:
        """Whether fresh result ``i`` must not be a view to autograd, although its node may be one.

        Autograd treats several views made at once, and those of custom functions, as views. It
        refuses in-place changes of them, as in eager. Other such results are views of values that
        the caller cannot reach. A result that was written through a view is traced as a view, so
        it is not among them. Or eager shares their memory without marking them as views
        (``unsafe_split``).
        """
        if info.output_type == _OUT.unsafe_view_alias:
            return node.target is not operator.getitem
        viewed = views.is_view(node) or (
            self.partitioned.call.returned.independent.get(i) is False and views.parent(node) is not None
        )
        return info.output_type == _OUT.non_alias and viewed

    def _literal_result(self, value: Any, i: int) -> schema.Result:
        leaf = returned_argument(value)
        if leaf is not None:
            return schema.InputResult(self.primals.described.index(schema.InputPrimal(leaf)))
        if isinstance(value, torch.SymInt):
            return schema.SizeResult(size_expression(value, self.partitioned.shape_env))
        literal = literal_argument(self.partitioned.call.returned.constants.get(i, value))
        if literal is NOT_A_LITERAL:
            self.partitioned.refuse("result", f"returns a {type(value).__name__}")
            literal = None
        return schema.ConstantResult(literal)

    def _alias_of_input(self, info: Any, node: Node) -> schema.AliasResult:
        index = self.primals.index(info.base_idx)
        source: Node = self.primals.nodes[index]
        updated = self.partitioned.updated_value(info.base_idx)
        member, taken = self._member_of_base(index, node, [base for base in (updated, source) if base is not None])
        if taken is not None:
            index, updated = member, taken
        steps = self._view([updated, source] if updated is not None else [source], node)
        if taken is None and updated is not None and self._changes_sizes(info.base_idx):
            steps = self._from_before(info.base_idx, updated, node, steps)
        self._check_steps(steps, node)
        return schema.AliasResult(steps, primal=index, requires_grad=info.requires_grad, history=_has_history(info))

    def _changes_sizes(self, index: int) -> bool:
        found = self.partitioned.metadata.input_info[index]
        return bool(found.mutates_metadata and not found.mutates_storage_metadata)

    def _from_before(self, index: int, updated: Node, node: Node, steps: list[schema.ViewStep]) -> list[schema.ViewStep]:
        """Return the steps of a view that was taken before its argument's sizes changed in place.

        The loader rebuilds results after that change.
        """
        source = self.primals.traced[index]
        if source not in views.chain(node) or views.steps_between(updated, node, self.partitioned.shape_env) is not None:
            return steps
        geometry = geometry_of(self.partitioned, source, updated)
        if geometry.absolute or geometry.offset != 0:
            where = source_line(node) or self.primals.path(index)
            message = "returns a view of an argument, created before as_strided_ changed its storage offset; clone the view"
            self.partitioned.refuse(where, message)
        return [views.same_start_step(source.meta["val"], self.partitioned.shape_env), *steps]

    def _member_of_base(self, index: int, node: Node, bases: Sequence[Node]) -> tuple[int, Node | None]:
        """Return the argument inside base ``index`` that ``node`` is a view of, and that argument's node in the graph."""
        primal = self.primals.described[index]
        if not isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)):
            return index, None
        flat = self.partitioned.call.leaves
        leaves_by_layout: dict[Any, list[int]] = {}
        for m in primal.members:
            leaves_by_layout.setdefault((flat[m.leaf].shape, flat[m.leaf].stride(), m.offset), []).append(m.leaf)
        chain = views.chain(node)
        start = next((i for i in reversed(range(len(chain))) if chain[i] in bases), len(chain))
        below = chain[start + 1 :]
        for i, value in enumerate(below):
            tensor = value.meta["val"]
            leaves = leaves_by_layout.get((tensor.shape, tensor.stride(), tensor.storage_offset()))
            if leaves is not None and value.target is not torch.ops.aten.detach.default:  # a detached base is not an argument
                twin = count_twins([str(view.target) for view in below[i + 1 :]])
                leaf = leaves[min(twin, len(leaves) - 1)]
                return self.primals.described.index(schema.InputPrimal(leaf)), below[i + 2 * leaves.index(leaf)]
        return index, None

    def _check_steps(self, steps: Sequence[schema.ViewStep], node: Node) -> None:
        """Check that the sizes in the steps of a view are known when the loader rebuilds it."""
        if unknown := [size for size in views.sizes_in(list(steps)) if not self.sizes.is_known(size)]:
            self.partitioned.refuse(source_line(node) or node.name, f"a view whose sizes depend on data: {', '.join(unknown)}")

    def _view(self, bases: Sequence[Node], alias: Node) -> list[schema.ViewStep]:
        """Return view steps to ``alias`` from the first of ``bases`` that has such steps, or else ``as_strided``."""
        env = self.partitioned.shape_env
        between = subclass_leaves.view_steps if subclass_leaves.is_folded(alias) else views.steps_between
        steps = next((steps for base in bases if (steps := between(base, alias, env)) is not None), None)
        if steps is not None:
            return steps
        if subclass_leaves.is_folded(alias):
            self.partitioned.refuse(source_line(alias) or "result", "returns a view of a tensor subclass that cannot be replayed")
            return []
        return views.as_strided_step(alias.meta["val"], env)

    def _alias_of_intermediate(
        self, info: Any, node: Node, nodes: Sequence[Any], bases: Sequence[Any], base_positions: Sequence[int]
    ) -> schema.Result:
        whole = info
        if info.output_type == _OUT.alias_of_intermediate_base_is_user_output and info.base_idx not in self.positions:
            whole = self.partitioned.metadata.output_info[info.base_idx]  # a detached view of a result that is a view itself
        if whole.output_type == _OUT.alias_of_intermediate_base_is_user_output:
            base, position = nodes[whole.base_idx], self.positions[whole.base_idx]
        else:
            base, position = bases[whole.base_idx], base_positions[whole.base_idx]
        steps = self._view([base], node)
        self._check_steps(steps, node)
        return schema.AliasResult(steps, output=position, requires_grad=info.requires_grad, history=_has_history(info))


def _has_history(info: Any) -> bool:
    """Whether a result has history.

    False for a view taken with gradients off, which only inherits ``requires_grad``.
    """
    return aot_autograd.participates_in_backward(info) or not info.requires_grad
