"""What a training step keeps for its backward, with and without recomputation: eager against bundles, in bytes.

    recompute.py --model blocks|gpt [--target cpu] [--target portable]

Eager's figure is what its saved-tensor hooks see, and what selective checkpoints keep beside them; a bundle's is what the node
of its call holds. Both count storages that are neither parameters, buffers nor arguments, each once. ``run.py`` starts this file.
"""

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import aotpack

GPT = Path(__file__).resolve().parents[2] / "examples" / "gpt"
PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
BUDGETS = (0.5, 0.0)

Contexts = Callable[[], Any]


class Block(nn.Module):
    """A residual block of a multilayer perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """Eight blocks; ``options`` are those of the checkpoint around each, null: none."""

    def __init__(self, options: dict[str, Any] | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(128) for _ in range(8)])
        self.options = options

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x) if self.options is None else checkpoint(block, x, **self.options)
        return {"loss": x.square().mean()}


def blocks(options: dict[str, Any] | None) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model, and its example inputs."""
    return Blocks(options), (torch.randn(64, 128),), {}


def gpt(options: dict[str, Any] | None) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The GPT example, whose blocks transformers checkpoints."""
    sys.path.insert(0, str(GPT))
    import model as example

    made = example.model()
    if options is not None:
        made.gpt.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return made, *example.example_inputs()


MODELS = {"blocks": blocks, "gpt": gpt}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--target", action="append", choices=["cpu", "portable"], dest="targets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    make = MODELS[options.model]
    kept: list[Any] = []

    def selective() -> Any:
        contexts = create_selective_checkpoint_contexts(PRODUCTS)
        kept.append(contexts[0])
        return contexts

    variants: dict[str, tuple[dict[str, Any] | None, float | None]] = {
        "everything saved": (None, None),
        "checkpoint": ({"use_reentrant": False}, None),
        "checkpoint, products saved": ({"use_reentrant": False, "context_fn": selective}, None),
        **{f"memory budget {budget:g}": (None, budget) for budget in BUDGETS},
    }
    found = {
        name: measure(functools.partial(make, keywords), budget, options.targets or ["cpu", "portable"], kept)
        for name, (keywords, budget) in variants.items()
    }
    print(json.dumps(found))


def measure(make: Callable[[], Any], budget: float | None, targets: Iterable[str], kept: list[Any]) -> dict[str, Any]:
    """Bytes kept by eager and by a bundle of each target, and how far gradients are apart, relative to the largest of each."""
    torch.manual_seed(0)
    model, args, kwargs = make()
    model.train()
    kept.clear()
    loss, eager_bytes = saved_by_eager(model, args, kwargs, kept)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    result: dict[str, Any] = {"eager": eager_bytes}
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            out = Path(folder) / target
            aotpack.build(model, args, kwargs, out=out, targets=(target,), methods=("train",), memory_budget=budget)
            loaded = aotpack.load(out, backend=target)
            loss = loaded(*args, **kwargs)["loss"]
            result[target] = saved_by_bundle(loss, known(loaded, args, kwargs))
            loss.backward()
            difference = max(
                float((parameter.grad - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-12))
                for name, parameter in loaded.named_parameters()
                if parameter.grad is not None
            )
            result[f"{target}, gradients apart"] = difference
    return result


def saved_by_eager(model: nn.Module, args: Any, kwargs: Any, kept: list[Any]) -> tuple[Tensor, int]:
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(*args, **kwargs)["loss"]
    return loss, storage_bytes([*saved, *cached_in(kept)], known(model, args, kwargs))


def cached_in(contexts: Iterable[Any]) -> Iterator[Tensor]:
    """What selective checkpoints keep, which no hook sees."""
    entries = [entry for context in contexts for values in context.storage.values() for entry in values.values()]
    for wrapper in torch.utils._pytree.tree_leaves(entries):
        if isinstance(value := getattr(wrapper, "val", None), Tensor):
            yield value


def saved_by_bundle(loss: Tensor, known: set[int]) -> int:
    nodes = [loss.grad_fn]
    while nodes:
        node: Any = nodes.pop()
        if type(node).__name__ == "_StepBackward":
            saved = [*node.saved_tensors, *node.call.unchecked]
            return storage_bytes([value for value in saved if isinstance(value, Tensor)], known)
        nodes += [below for below, _ in node.next_functions if below is not None]
    raise LookupError("the loss is not a bundle's")


def known(model: nn.Module, args: Any, kwargs: Any) -> set[int]:
    """Addresses of the storages that are there anyway."""
    tensors = [*model.parameters(), *model.buffers(), *torch.utils._pytree.tree_leaves((args, kwargs))]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if isinstance(tensor, Tensor)}


def storage_bytes(tensors: Iterable[Tensor], known: set[int]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(size for address, size in storages.items() if address not in known)


if __name__ == "__main__":
    main()
