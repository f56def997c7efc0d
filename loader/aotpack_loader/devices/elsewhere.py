"""What portable graphs do in another way on devices other than the CPU, on which they were traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..errors import TargetError
from ..format import schema
from .base import Executable
from .generator import exchange_random_state, random_state


def implementation(
    node: schema.Node, function: Callable[..., Any], device: torch.device, values: Mapping[str, schema.Value]
) -> Callable[..., Any]:
    """What computes a node on ``device``, where ``function`` does on the CPU. ``values`` are those of the graph, by name.

    Raises:
        TargetError: it depends on strides that the device's kernels choose.
    """
    if function in (random_state, exchange_random_state):
        return partial(function, device=device)
    if node.op == "aten.where.self":
        return partial(_where, function)
    if node.op.startswith("aten.as_strided") and node.args and isinstance(node.args[0], schema.ValueRef):
        strides = _strides(values.get(node.args[0].name), device)
        return lambda base, *args, **kwargs: function(_laid_out(base, strides), *args, **kwargs)
    return function


def with_strided_results(
    run: Executable, graph: schema.Graph, results: Sequence[schema.Result], device: torch.device
) -> Executable:
    """A forward graph whose outputs have the recorded strides where a result reads their memory by ``as_strided``.

    Raises:
        TargetError: these strides vary.
    """
    read = {
        result.output
        for result in results
        if isinstance(result, schema.AliasResult) and any(step.op.startswith("aten.as_strided") for step in result.view)
    }
    values = values_of(graph)
    names = {i: output.name for i, output in enumerate(graph.outputs) if i in read and isinstance(output, schema.ValueRef)}
    strides = {i: _strides(values[name], device) for i, name in names.items() if name not in graph.inputs}
    if not strides:
        return run

    def strided(inputs: list[Any]) -> list[Any]:
        outputs = run(inputs)
        for i, expected in strides.items():
            outputs[i] = _laid_out(outputs[i], expected)
        return outputs

    return strided


def values_of(graph: schema.Graph) -> dict[str, schema.Value]:
    """What a graph says of its inputs and nodes, by name."""
    return dict(zip(graph.inputs, graph.input_values, strict=True)) | {node.name: node.value for node in graph.nodes}


def _where(where: Callable[..., Any], condition: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> Any:
    """Torch takes a number of the CPU beside tensors elsewhere, but not as a condition."""
    return where(condition if condition.dim() else condition.to(right.device if left.is_cpu else left.device), left, right)


def _strides(value: schema.Value | None, device: torch.device) -> list[int]:
    strides = value.stride if isinstance(value, schema.TensorValue) else [""]
    fixed = [step for step in strides if isinstance(step, int)]
    if len(fixed) < len(strides):
        raise TargetError(
            f"This bundle cannot run on {device}: it reads memory by as_strided, in strides that vary.",
            hint="Kernels of other devices may choose other strides than those of the CPU. Build it with fixed sizes.",
        )
    return fixed


def _laid_out(base: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """A tensor with the strides that the CPU's kernels chose: itself, or a copy."""
    if all(found == step or size < 2 for found, step, size in zip(base.stride(), strides, base.shape, strict=True)):
        return base
    return torch.empty_strided(base.shape, strides, dtype=base.dtype, device=base.device).copy_(base)


def moved(state: Mapping[str, torch.Tensor], device: torch.device) -> Mapping[str, torch.Tensor]:
    """The state on another device. Memory that tensors share is moved once, and they share it there, too.

    Raises:
        TargetError: the device does not take it.
    """
    bases: dict[int, torch.Tensor] = {}
    return {name: _moved(tensor, device, bases) for name, tensor in state.items()}


def _moved(tensor: torch.Tensor, device: torch.device, bases: dict[int, torch.Tensor]) -> torch.Tensor:
    """A tensor on another device, with the same strides. ``bases`` are the storages that are there, by their address here.

    Raises:
        TargetError: the device does not take it.
    """
    if hasattr(tensor, "__tensor_flatten__"):
        names, metadata = tensor.__tensor_flatten__()
        parts = {name: _moved(getattr(tensor, name), device, bases) for name in names}
        whole: torch.Tensor = type(tensor).__tensor_unflatten__(parts, metadata, tensor.shape, tensor.stride())  # type: ignore[attr-defined]
        return whole
    try:
        if not tensor.numel():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        storage = tensor.untyped_storage()
        if (base := bases.get(storage.data_ptr())) is None:
            whole = tensor.as_strided((storage.nbytes() // tensor.itemsize,), (1,), 0)
            base = bases[storage.data_ptr()] = whole.to(device)
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).data
    except (RuntimeError, TypeError) as error:  # memory, or an element type that it does not have
        raise TargetError(f"The state of the bundle cannot go to {device}: {str(error).strip().splitlines()[0]}") from error
