"""Describes results: those that the forward graph computes, and views that the loader rebuilds."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from msgspec import structs
from torch.fx import Node

from aotpack_loader.errors import Problem
from aotpack_loader.format import schema

from .. import _torch as compat
from ..capture.inputs.synthetic_bases import count_twins, returned_argument
from ..graph import source_line, views
from ..graph.expressions import size_expression
from ..graph.literals import NOT_A_LITERAL, literal_argument
from . import subclass_leaves
from .mutations import Mutations

_OUT = compat.OutputType
FRESH = (_OUT.non_alias, _OUT.unsafe_view_alias, _OUT.custom_function_view)
"""The kinds of results whose backward is in the graph. Others are rebuilt as views."""


_DETACH = schema.ViewStep("aten.detach.default", [], {})


class _Rebuilt(NamedTuple):
    """A view, as steps from ``origin``.

    That is result ``base``, or no result if ``base`` is None.
    """

    origin: Node
    base: int | None
    steps: list[schema.ViewStep]


class Outputs(Mutations):
    """Adds the other outputs of the forward: fresh results and bases of aliases."""

    def _results(self) -> list[schema.Result]:
        metadata = self.metadata
        first = metadata.num_mutated_inp_runtime_indices
        count = len(metadata.output_info)
        nodes = self.parts.forward_outputs[first : first + count]
        bases = self.parts.forward_outputs[first + count :]
        placed: dict[int, int] = {}
        results: list[schema.Result | None] = [None] * count
        rebuilt = self._views_without_gradient(nodes)
        for i, (info, node) in enumerate(zip(metadata.output_info, nodes, strict=True)):
            if i not in rebuilt:
                results[i] = self._plain_result(info, node, placed, i)
        base_positions = [self._output(base, fresh=True) for base in bases if isinstance(base, Node)]
        origins: dict[Node, int] = {}
        for i, (origin, base, steps) in rebuilt.items():
            primal = position = None
            if base in placed:
                position = placed[base]
            elif origin in self.primal_nodes:
                primal = self.primal_nodes.index(origin)
            else:
                if origin not in origins:
                    origins[origin] = self._output(origin, fresh=True)
                position = origins[origin]
            results[i] = schema.AliasResult(steps, primal=primal, output=position, history=False)
        for i, (info, node) in enumerate(zip(metadata.output_info, nodes, strict=True)):
            if results[i] is None and isinstance(node, Node):
                results[i] = self._alias_of_intermediate(info, node, nodes, bases, base_positions, placed)
        found = [result for result in results if result is not None]
        return self._shared(*self._detached(found, rebuilt))

    def _views_without_gradient(self, nodes: list[Any]) -> dict[int, _Rebuilt]:
        """Return the results without gradient that are views of another result, or of one value together with others.

        AOTAutograd treats them as new tensors, because it makes no difference to autograd.
        """
        found: dict[int, _Rebuilt] = {}
        for base, leaves in ((family.base, family.views) for family in self.returned.families):
            members = [i for i in leaves if self._is_computed(i, nodes[i]) and not self.metadata.output_info[i].requires_grad]
            origin = None
            if base is not None and self._is_computed(base, nodes[base]):
                origin = nodes[base]
            elif base is None and len({self.returned.same.get(i, i) for i in members}) > 1:
                origin = views.common_root([nodes[i] for i in members])
            if origin is None or (origin.op in ("placeholder", "get_attr") and origin not in self.primal_nodes):
                continue
            for i in members:
                steps = views.steps_between(origin, nodes[i], self.shape_env)
                steps = self._steps_from_later(origin, nodes[i]) if steps is None else steps
                if steps is not None and all(map(self._is_known, views.sizes_in(steps))):
                    found[i] = _Rebuilt(origin, base, steps)
        return found

    def _steps_from_later(self, origin: Node, view: Node) -> list[schema.ViewStep] | None:
        """Return the steps of a view that was taken before its base changed sizes in place, for example by ``t_()``."""
        root = views.common_root([origin, view])
        if root is None:
            return None
        now, before = origin.meta["val"], root.meta["val"]
        steps = views.steps_between(root, view, self.shape_env)
        same = compat.statically_known_true(now.numel() == before.numel())
        if steps is None or not same or not compat.statically_known_true(now.storage_offset() == before.storage_offset()):
            return None
        return [views.same_start_step(before, self.shape_env), *steps]

    def _is_computed(self, i: int, node: Any) -> bool:
        """Whether result ``i`` is a dense plain tensor that AOTAutograd treats as new."""
        new = isinstance(node, Node) and self.metadata.output_info[i].output_type in FRESH
        return new and i not in self.joint.sparse and not subclass_leaves.is_folded(node)

    def _plain_result(self, info: Any, node: Any, placed: dict[int, int], i: int) -> schema.Result | None:
        if not isinstance(node, Node):
            return self._literal_result(node, i)
        value = node.meta["val"]
        if isinstance(value, torch.SymInt) and self._is_known(size := size_expression(value, self.shape_env)):
            return schema.SizeResult(size)
        if not isinstance(value, torch.Tensor):
            return schema.NumberResult(self._output(node, fresh=True))
        if info.output_type in FRESH:
            sparse_dim = self.joint.sparse.get(i)
            if node in self.primal_nodes:
                if self.parts.backward is None and sparse_dim is None:
                    return schema.InputResult(self.primal_nodes.index(node))
                node = self._copied(node)
                self.parts.forward_outputs[self.metadata.num_mutated_inp_runtime_indices + i] = node
            placed[i] = self._output(node, fresh=True)
            return schema.FreshResult(placed[i], info.requires_grad, self._is_own(i, info, node), sparse_dim)
        if info.output_type == _OUT.is_input:
            return schema.InputResult(self._primal_index(info.base_idx))
        if info.output_type == _OUT.alias_of_input:
            return self._alias_of_input(info, node)
        return None

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
        viewed = views.is_view(node) or (self.returned.apart.get(i) is False and views.parent(node) is not None)
        return info.output_type == _OUT.non_alias and viewed

    def _literal_result(self, value: Any, i: int) -> schema.Result:
        leaf = returned_argument(value)
        if leaf is not None:
            return schema.InputResult(self.primals.index(schema.InputPrimal(leaf)))
        if isinstance(value, torch.SymInt):
            return schema.SizeResult(size_expression(value, self.shape_env))
        literal = literal_argument(self.returned.constants.get(i, value))
        if literal is NOT_A_LITERAL:
            self.problems.append(Problem("result", f"returns a {type(value).__name__}"))
            literal = None
        return schema.ConstantResult(literal)

    def _alias_of_input(self, info: Any, node: Node) -> schema.AliasResult:
        index = self._primal_index(info.base_idx)
        source: Node = self.primal_nodes[index]
        updated = self._updated_value(info.base_idx)
        member, taken = self._member_of_base(index, node, [base for base in (updated, source) if base is not None])
        if taken is not None:
            index, updated = member, taken
        steps = self._view([updated, source] if updated is not None else [source], node)
        if taken is None and updated is not None and self._changes_sizes(info.base_idx):
            steps = self._from_before(info.base_idx, updated, node, steps)
        self._check_steps(steps, node)
        return schema.AliasResult(steps, primal=index, requires_grad=info.requires_grad, history=_has_history(info))

    def _changes_sizes(self, index: int) -> bool:
        found = self.metadata.input_info[index]
        return bool(found.mutates_metadata and not found.mutates_storage_metadata)

    def _from_before(self, index: int, updated: Node, node: Node, steps: list[schema.ViewStep]) -> list[schema.ViewStep]:
        """Return the steps of a view that was taken before its argument's sizes changed in place.

        The loader rebuilds results after that change.
        """
        source = self._raw_primal_nodes[index]
        above = views.chain(node)
        if source not in above or views.steps_between(updated, node, self.shape_env) is not None:
            return steps
        geometry = self._geometry(index, updated)
        if geometry.absolute or geometry.offset != 0:
            where = source_line(node) or self._primal_path(index)
            message = "returns a view of an argument taken before as_strided_ moved where the argument begins: clone the view"
            self.problems.append(Problem(where, message))
        return [views.same_start_step(source.meta["val"], self.shape_env), *steps]

    def _member_of_base(self, index: int, node: Node, bases: list[Node]) -> tuple[int, Node | None]:
        """Return the argument inside base ``index`` that ``node`` is a view of, and that argument's node in the graph."""
        primal = self.primals[index]
        if not isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)):
            return index, None
        flat = pytree.tree_leaves((self.args, self.kwargs))
        places: dict[Any, list[int]] = {}
        for m in primal.members:
            places.setdefault((flat[m.leaf].shape, flat[m.leaf].stride(), m.offset), []).append(m.leaf)
        chain = views.chain(node)
        start = next((i for i in reversed(range(len(chain))) if chain[i] in bases), len(chain))
        below = chain[start + 1 :]
        for i, value in enumerate(below):
            tensor = value.meta["val"]
            leaves = places.get((tensor.shape, tensor.stride(), tensor.storage_offset()))
            if leaves is not None and value.target is not torch.ops.aten.detach.default:  # a detached base is not an argument
                twin = count_twins([str(view.target) for view in below[i + 1 :]])
                leaf = leaves[min(twin, len(leaves) - 1)]
                return self.primals.index(schema.InputPrimal(leaf)), below[i + 2 * leaves.index(leaf)]
        return index, None

    def _check_steps(self, steps: list[schema.ViewStep], node: Node) -> None:
        """Check that the sizes in the steps of a view are known when the loader rebuilds it."""
        if unknown := [size for size in views.sizes_in(steps) if not self._is_known(size)]:
            where = source_line(node) or node.name
            self.problems.append(Problem(where, f"a view whose sizes depend on data: {', '.join(unknown)}"))

    def _view(self, bases: list[Node], alias: Node) -> list[schema.ViewStep]:
        """Return view steps to ``alias`` from the first of ``bases`` that has such steps, or else ``as_strided``."""
        between = subclass_leaves.view_steps if subclass_leaves.is_folded(alias) else views.steps_between
        steps = next((steps for base in bases if (steps := between(base, alias, self.shape_env)) is not None), None)
        if steps is not None:
            return steps
        if subclass_leaves.is_folded(alias):
            where = source_line(alias) or "result"
            self.problems.append(Problem(where, "returns a view of a tensor subclass that its class cannot repeat"))
            return []
        return views.as_strided_step(alias.meta["val"], self.shape_env)

    def _updated_value(self, index: int) -> Node | None:
        mutated = self.metadata.mutated_inp_runtime_indices
        if index not in mutated:
            return None
        value = self.parts.forward_outputs[mutated.index(index)]
        return value if isinstance(value, Node) else None

    def _alias_of_intermediate(
        self,
        info: Any,
        node: Node,
        nodes: list[Any],
        bases: list[Any],
        base_positions: list[int],
        placed: dict[int, int],
    ) -> schema.Result:
        whole = info
        if info.output_type == _OUT.alias_of_intermediate_base_is_user_output and info.base_idx not in placed:
            whole = self.metadata.output_info[info.base_idx]  # a detached view of a result that is a view itself
        if whole.output_type == _OUT.alias_of_intermediate_base_is_user_output:
            base, position = nodes[whole.base_idx], placed[whole.base_idx]
        else:
            base, position = bases[whole.base_idx], base_positions[whole.base_idx]
        steps = self._view([base], node)
        self._check_steps(steps, node)
        return schema.AliasResult(steps, output=position, requires_grad=info.requires_grad, history=_has_history(info))

    def _detached(self, results: list[schema.Result], rebuilt: Collection[int]) -> tuple[list[schema.Result], dict[int, int]]:
        """Return the results with ``detach`` in aliases of arguments where eager detaches.

        Decompositions may drop it. An alias whose sizes change in place later is detached after
        that change, because it is not a view. The second value maps each such result to the number
        of steps before its ``detach``.
        """
        found, after = list(results), dict[int, int]()
        bases = {i: family.base for family in self.returned.families for i in family.views}
        for i, is_view in self.returned.apart.items():
            result, base = results[i], bases.get(i)
            if i in rebuilt or not isinstance(result, schema.AliasResult) or result.primal is None:
                continue
            steps = _without_detach(result)
            above = None if base is None else results[base]
            if len(steps) < len(result.view) and not _is_changed_later(above if is_view else result):
                continue
            place = len(_without_detach(above)) if isinstance(above, schema.AliasResult) else 0
            after[i] = place if is_view else len(steps)
            found[i] = structs.replace(result, view=[*steps[: after[i]], _DETACH, *steps[after[i] :]])
        return found, after

    def _shared(self, results: list[schema.Result], detached: dict[int, int]) -> list[schema.Result]:
        """Return the results with the view steps that each alias shares with an earlier one.

        Eager makes such a view once.
        """
        found: list[schema.Result] = []
        for i, result in enumerate(results):
            if isinstance(result, schema.AliasResult):
                shares = [self._shares(j, other, i, result, detached) for j, other in enumerate(found)]
                best = max(filter(None, shares), key=lambda share: (share.steps, share.call), default=None)
                result = structs.replace(result, shared=best)
            found.append(result)
        return found

    def _shares(
        self, j: int, earlier: schema.Result, i: int, result: schema.AliasResult, detached: dict[int, int]
    ) -> schema.Shared | None:
        if not isinstance(earlier, schema.AliasResult) or earlier.history != result.history:
            return None
        if (earlier.primal, earlier.output) != (result.primal, result.output):
            return None
        same = self.returned.same
        if same.get(i, i) == same.get(j, j) and earlier.view == result.view:
            return schema.Shared(j, len(result.view))
        if i in detached or j in detached:  # both are the same detached tensor, or views of it
            steps = detached.get(i, -1) + 1
            related = any({i, j} <= {family.base, *family.views} for family in self.returned.families)
            return schema.Shared(j, steps) if related and steps and earlier.view[:steps] == result.view[:steps] else None
        first = self.metadata.num_mutated_inp_runtime_indices
        ours, theirs = [self.parts.chains[first + k][-len(r.view) :] for k, r in ((i, result), (j, earlier))]
        if len(ours) != len(result.view) or len(theirs) != len(earlier.view):  # rebuilt by as_strided
            return None
        pairs = list(zip(ours, theirs, result.view, earlier.view, strict=False))
        steps = next((k for k, (a, b, x, y) in enumerate(pairs) if a != b or x != y), len(pairs))
        # If one ends at the shared value, the other continues from it. A detached value cannot lead to a gradient.
        if steps == len(earlier.view) and result.requires_grad and not earlier.requires_grad:
            return None
        if steps == len(result.view) and earlier.requires_grad and not result.requires_grad:
            return None
        call = steps < len(pairs) and pairs[steps][0][0] == pairs[steps][1][0]
        return schema.Shared(j, steps, call) if steps or call else None

    def _non_differentiable(self, mutations: list[schema.Mutation], results: list[schema.Result]) -> list[int]:
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


def _has_history(info: Any) -> bool:
    """Whether a result has history.

    False for a view taken with gradients off, which only inherits ``requires_grad``.
    """
    return compat.participates_in_backward(info) or not info.requires_grad


def _is_changed_later(result: schema.Result | None) -> bool:
    """Whether a detached alias changed its sizes or strides in place after the detach."""
    return isinstance(result, schema.AliasResult) and _DETACH in result.view and result.view[-1] != _DETACH


def _without_detach(result: schema.AliasResult) -> list[schema.ViewStep]:
    return [step for step in result.view if step.op != _DETACH.op]
