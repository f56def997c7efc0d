"""Bytes that a training step saves for its backward, with and without recomputation: eager, ``torch.compile``, bundles.

    recompute.py --model blocks|gpt [--target cpu] [--target portable]

The figure is the memory that torch's profiler saw allocated and not freed during a forward, without
the results.
"""

import argparse
import functools
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import aotpack
from devtools.files import import_file
from devtools.paths import ROOT

GPT = ROOT / "examples" / "gpt" / "model.py"
PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
BUDGETS = (0.5, 0.2, 0.0)
"""Shares of what would be saved; 1 is "everything saved"."""


class Blocks(nn.Module):
    """Eight blocks. ``options`` are those of the checkpoint around each block; None: no checkpoints."""

    def __init__(self, options: dict[str, Any] | None) -> None:
        from devtools.bench.models.stack import Block

        super().__init__()
        self.blocks = nn.ModuleList([Block(128) for _ in range(8)])
        self.options = options

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x) if self.options is None else checkpoint(block, x, **self.options)
        return {"loss": x.square().mean()}


def blocks(options: dict[str, Any] | None) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model and its example inputs."""
    return Blocks(options), (torch.randn(64, 128),), {}


def gpt(options: dict[str, Any] | None) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The GPT example, with transformers' checkpoints around its blocks."""
    example = import_file(GPT, "gpt_example")
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
    selective = functools.partial(create_selective_checkpoint_contexts, PRODUCTS)
    variants: dict[str, tuple[dict[str, Any] | None, float | None]] = {
        "everything saved": (None, None),
        "checkpoint": ({"use_reentrant": False}, None),
        "checkpoint, products saved": ({"use_reentrant": False, "context_fn": selective}, None),
        **{f"memory budget {budget:g}": (None, budget) for budget in BUDGETS},
    }
    found = {
        name: measure(functools.partial(make, keywords), budget, options.targets or ["cpu", "portable"])
        for name, (keywords, budget) in variants.items()
    }
    print(json.dumps(found))


def measure(make: Callable[[], Any], budget: float | None, targets: Iterable[str]) -> dict[str, Any]:
    """Bytes saved by each contender, and the differences of gradients, relative to the largest of each."""
    torch.manual_seed(0)
    model, args, kwargs = make()
    model.train()
    result: dict[str, Any] = {"eager": kept(model, args, kwargs)}
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    with torch._functorch.config.patch(activation_memory_budget=1.0 if budget is None else budget):
        torch._dynamo.reset()
        result["compile"] = kept(torch.compile(model), args, kwargs)
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            out = Path(folder) / target
            aotpack.build(model, args, kwargs, out=out, targets=(target,), methods=("train",), memory_budget=budget)
            loaded = aotpack.load(out, backend=target)
            result[target] = kept(loaded, args, kwargs)
            result[f"{target}, gradients apart"] = max(
                float((parameter.grad - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-12))
                for name, parameter in loaded.named_parameters()
                if parameter.grad is not None
            )
    return result


def kept(model: nn.Module, args: Any, kwargs: Any) -> int:
    """Bytes that a forward leaves allocated in addition to its results. The model then has its gradients."""
    model.zero_grad()
    model(*args, **kwargs)["loss"].backward()  # makes the allocations of a first call
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        results = model(*args, **kwargs)
    allocated = sum(event.self_cpu_memory_usage for event in profiler.key_averages())
    given = {result.untyped_storage().data_ptr(): result.untyped_storage().nbytes() for result in results.values()}
    results["loss"].backward()
    return int(allocated) - sum(given.values())


if __name__ == "__main__":
    main()
