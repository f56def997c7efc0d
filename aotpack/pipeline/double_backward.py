"""Traces second derivatives: the gradients of a method become a method of their own.

The backward graph alone cannot be differentiated again, because it reads saved tensors. The graphs
do not record how these depend on the inputs, for example through ``detach``, ``no_grad`` or an
``autograd.Function`` with its own backward. So the build traces the gradients again from the
model, as autograd computes them with ``create_graph=True``. They are traced as a function of
tangents and tensor arguments.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from .. import partition
from .._torch.api import fake_tensors
from .._torch.api.functional_call import functional_call
from .._torch.api.random_operators import is_random
from ..capture.inputs.dynamic_shapes import DynamicShapes
from ..capture.returned import result_leaves
from ..signature import Convention


class Gradients(torch.nn.Module):
    """A module that maps ``(*tangents, *tensor arguments)`` to the gradients of a method.

    It has the model's own parameters under the model's names.

    Raises:
        UnsupportedError: names the parts of the method whose second derivatives are not supported.
    """

    _model: torch.nn.Module

    def __init__(self, model: torch.nn.Module, first: Convention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        self.__dict__["_model"] = model
        self._flat, self._spec = pytree.tree_flatten((args, kwargs))
        self._tensors = [i for i, leaf in enumerate(self._flat) if isinstance(leaf, torch.Tensor)]
        method, backward = first.method, first.described_backward
        problems: list[Problem] = []
        self._results = [_result_of(tangent, method.results, problems) for tangent in backward.tangents]
        primals = [p for p, gradient in zip(method.primals, backward.gradients, strict=True) if gradient is not None]
        self._wanted = [p for p in primals if isinstance(p, (schema.ParameterPrimal, schema.InputPrimal))]
        if len(self._wanted) < len(primals):  # the others are bases
            problems.append(Problem("arguments", "share memory, and the model writes to one of them"))
        written = [method.primals[mutation.primal] for mutation in method.mutations]
        self._overwritten = [primal.name for primal in written if isinstance(primal, schema.BufferPrimal)]
        inputs = [p for p in written if isinstance(p, schema.InputPrimal)]
        problems += [Problem(method.leaves[p.leaf].path, "is written to by the model") for p in inputs]
        if backward.tangent_writes:
            problems.append(Problem("results", "have gradients that a custom backward writes to"))
        if backward.state_writes:
            problems.append(Problem("state", "has buffers that a hook or a custom backward writes to"))
        if problems:
            raise UnsupportedError("Second derivatives of this model are not supported.", problems)

    def train(self, mode: bool = True) -> Gradients:
        """Set the mode of the model's root as well, because it is not a submodule of this module."""
        self._model.training = mode
        return super().train(mode)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return one gradient for each primal that has one, in order."""
        count = len(self._results)
        tangents, leaves = tensors[:count], list(self._flat)
        for i, tensor in zip(self._tensors, tensors[count:], strict=True):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        buffers = dict(self._model.named_buffers(remove_duplicate=False))
        copies = {name: buffers[name].clone() for name in self._overwritten}
        result = functional_call(self._model, copies, args, kwargs) if copies else self._model(*args, **kwargs)
        results = result_leaves(result)
        wanted = [leaves[p.leaf] if isinstance(p, schema.InputPrimal) else parameters[p.name] for p in self._wanted]
        outputs = [results[i] for i in self._results]
        return torch.autograd.grad(outputs, wanted, tangents, create_graph=True, allow_unused=True)

    def example(self, first: Convention, shapes: DynamicShapes) -> tuple[tuple[torch.Tensor, ...], DynamicShapes]:
        """Return example inputs of this module and their dynamic sizes.

        Raises:
            UnsupportedError: an integer argument is dynamic. Gradients take tensors only, so they
                would keep the example's value.
        """
        if shapes.integers:
            paths = [first.method.leaves[i].path for i in shapes.integers]
            raise UnsupportedError(
                "Second derivatives of this model are not supported.",
                [Problem(path, "is a dynamic integer, and gradients are traced as a function of tensors only") for path in paths],
                hint="Fix it in dynamic_shapes, or pass what depends on it as a tensor.",
            )
        assert first.backward is not None
        described = first.described_backward.tangents
        nodes = first.backward.graph.find_nodes(op="placeholder")[-len(described) :]
        tangents = [fake_tensors.example_like(node.meta["val"]).requires_grad_() for node in nodes]
        dims = {
            t: {
                dim: fake_tensors.Bounds(None, None, automatic=True)
                for dim, size in enumerate(tangent.shape)
                if isinstance(size, str)
            }
            for t, tangent in enumerate(described)
        }
        dims |= {len(tangents) + k: shapes.dims[i] for k, i in enumerate(self._tensors) if i in shapes.dims}
        return (*tangents, *[self._flat[i] for i in self._tensors]), DynamicShapes(None, dims)


def _result_of(tangent: schema.Tangent, results: list[schema.Result], problems: list[Problem]) -> int:
    for i, result in enumerate(results):
        if isinstance(result, schema.FreshResult) and result.output == tangent.output:
            return i
    problems.append(Problem("results", "are views of a value that requires a gradient and is not returned itself"))
    return 0


def check(first: Convention, second: Convention) -> bool:
    """Check that the gradients can be computed from what exists after the forward.

    Return whether it draws random numbers.

    Raises:
        UnsupportedError: the gradients read values that the forward overwrites, or draw other
            random numbers than it.
    """
    problems = []
    overwritten = [first.method.primals[mutation.primal] for mutation in first.method.mutations]
    for primal, users in _reads(second):
        if primal in overwritten and users:
            problems.append(
                Problem(primal.name, "is read by the gradients, and written to before the second derivatives are computed")
            )
    drawn, again = _draws(first.forward), _draws(second.forward)
    # The backward recomputes random values from the generator state that the forward has saved (aotpack.rng).
    own = {node.name for node in _draws(second.backward)} - {node.name for node in again}
    if own or [str(node.target) for node in drawn] != [str(node.target) for node in again]:
        problems.append(Problem("model", "draws random numbers, and the trace of its gradients would draw others"))
    if problems:
        raise UnsupportedError("Second derivatives of this model are not supported.", problems)
    return bool(drawn)


def _reads(convention: Convention) -> list[tuple[Any, list[Node]]]:
    """Return each primal with the nodes of both graphs that read it."""
    forward, backward = convention.forward.graph, convention.backward
    inputs = [] if backward is None else backward.graph.find_nodes(op="placeholder")
    returned = list(forward.output_node().args[0])  # type: ignore[arg-type]
    described = convention.method.backward
    saved = {} if described is None else {i: s for i, s in enumerate(described.saved) if not isinstance(s, schema.SavedSize)}

    def readers(node: Node) -> list[Node]:
        found = []
        for user in node.users:
            if user.op == "output":
                at = [i for i, s in saved.items() if isinstance(s, schema.SavedOutput) and returned[s.output] is node]
                found += [reader for i in at for reader in readers(inputs[i])]
            elif user.target is torch.ops.aten.clone.default:
                found += readers(user)
            elif _trains(user):
                found += [reader for item in user.users if item.args[1] in _NEW_STATISTICS for reader in readers(item)]
            else:
                found.append(user)
        return found

    primals = convention.method.primals
    reads = [(p, readers(node)) for p, node in zip(primals, forward.find_nodes(op="placeholder"), strict=True)]
    return reads + [(primals[s.primal], readers(inputs[i])) for i, s in saved.items() if isinstance(s, schema.SavedPrimal)]


_TRAINING = {
    "aten._native_batch_norm_legit_functional.default": 5,
    "aten.native_batch_norm_backward.default": 7,
    "aten.batch_norm_backward.default": 6,
}
"""Batch normalisation operators, with the index of the argument that says whether they are in train mode."""
_NEW_STATISTICS = (3, 4)
"""Indices of the results that depend on the running statistics in train mode.

The backward has none of them.
"""


def _trains(node: Node) -> bool:
    index = _TRAINING.get(str(node.target))
    return index is not None and node.args[index] is True


def depends(first: Convention, second: Convention) -> list[list[int]]:
    """Return for each primal of the first method the tangents that its second derivative depends on.

    With fewer than two tangents the list is empty, which means that each depends on all.
    """
    assert second.backward is not None
    count, primals = len(first.described_backward.tangents), second.method.primals
    if count < 2:
        return []
    inputs = second.forward.graph.find_nodes(op="placeholder")
    tangents = [{p.leaf} if isinstance(p, schema.InputPrimal) and p.leaf < count else set[int]() for p in primals]
    reach = {node: frozenset(own) for node, own in zip(inputs, tangents, strict=True)}
    partition.propagate_dependencies(second.forward, reach)
    returned = partition.output_args(second.forward)
    for node, saved in zip(second.backward.graph.find_nodes(op="placeholder"), second.described_backward.saved, strict=False):
        if isinstance(saved, schema.SavedPrimal):
            reach[node] = reach[inputs[saved.primal]]
        elif isinstance(saved, schema.SavedOutput):
            reach[node] = reach[returned[saved.output]]
    partition.propagate_dependencies(second.backward, reach)
    gradients = partition.output_args(second.backward)
    leaves = sorted(p.leaf for p in first.method.primals if isinstance(p, schema.InputPrimal))
    found: dict[str, list[int]] = {}  # by repr: primals that list sizes have no hash
    for primal, own, position in zip(primals, tangents, second.described_backward.gradients, strict=True):
        if not own and position is not None:
            of = schema.InputPrimal(leaves[primal.leaf - count]) if isinstance(primal, schema.InputPrimal) else primal
            found[repr(of)] = sorted(reach[gradients[position]])
    return [found.get(repr(primal), list(range(count))) for primal in first.method.primals]


def _draws(module: GraphModule | None) -> list[Node]:
    """Return the nodes that draw random numbers, in order."""
    return [] if module is None else [node for node in module.graph.nodes if is_random(node)]
