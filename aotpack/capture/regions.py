"""Marks the repeated layers of a model as nested compile regions, so that each is compiled once.

PyTorch calls this regional compilation:
https://docs.pytorch.org/tutorials/recipes/regional_compilation.html
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

_NOT_CALLED = (nn.ModuleList, nn.ModuleDict)


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of which one ``ModuleList`` or ``Sequential`` has several.

    These have one class, and parameters and buffers of the same names and sizes. Layers without
    submodules are left out: kernels of their own would be slower. So are layers of repeated layers.
    """
    found: dict[int, nn.Module] = {}
    covered: set[int] = set()
    for container in model.modules():
        if id(container) in covered or not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        alike: defaultdict[object, list[nn.Module]] = defaultdict(list)
        for layer in container:
            if not isinstance(layer, _NOT_CALLED) and next(layer.children(), None) is not None:
                alike[_structure(layer)].append(layer)
        for layer in (layer for layers in alike.values() if len(layers) > 1 for layer in layers):
            found[id(layer)] = layer
            covered.update(map(id, layer.modules()))
    return list(found.values())


def _structure(layer: nn.Module) -> object:
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return type(layer), tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)


def recomputes_regions(module: torch.fx.GraphModule) -> bool:
    """Whether a checkpoint of the model has calls of regions in it."""
    calls = module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    return any(call.meta.get("recompute") is not None for call in calls)


@contextlib.contextmanager
def as_regions(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Mark calls of these layers as nested compile regions inside the block."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_forward_replaced(layer, torch.compiler.nested_compile_region(_region(layer.forward))))
        yield


def _region(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:  # a method takes no attributes, and a region needs some
        return forward(*args, **kwargs)

    return run


@contextlib.contextmanager
def _forward_replaced(layer: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    own = vars(layer)
    before = own.get("forward")
    own["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del own["forward"]
        else:
            own["forward"] = before
