"""Writes the results of one training step for comparison: loss, every gradient, the state before and after.

    first_step.py --model model.py --save-inputs inputs.pt --out eager.safetensors      the reference, eager
    first_step.py --bundle m.aotpack [--backend cpu] --inputs inputs.pt --out bundle.safetensors

Two processes write two files. The process that runs the bundle never has access to the model's
source.
"""

import argparse
from typing import Any

import torch
from safetensors.torch import save_file

from aotpack.tools.measure.contender import loss_of


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="model.py[:factory]")
    source.add_argument("--bundle")
    parser.add_argument("--backend")
    parser.add_argument("--trust")
    inputs = parser.add_mutually_exclusive_group(required=True)
    inputs.add_argument("--save-inputs", help="write the example inputs of --model here")
    inputs.add_argument("--inputs", help="read the inputs from here")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def model_and_inputs(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    if options.bundle:
        import aotpack_loader

        model = aotpack_loader.load(options.bundle, backend=options.backend, trust=options.trust)
        return (model, *torch.load(options.inputs, weights_only=True))
    from aotpack.model.entry import load_entry

    entry = load_entry(options.model)
    if options.inputs:
        return (entry.model, *torch.load(options.inputs, weights_only=True))
    torch.save(entry.inputs, options.save_inputs)
    return (entry.model, *entry.inputs)


def main() -> None:
    options = parse()
    model, args, kwargs = model_and_inputs(options)
    model.train()
    found = {f"before.{name}": value.detach().clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    loss = loss_of(model(*args, **kwargs))
    loss.backward()
    found["loss"] = loss.detach()
    found |= {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    found |= {f"after.{name}": value.detach() for name, value in model.state_dict().items()}
    save_file({name: value.clone().contiguous() for name, value in found.items()}, options.out)


if __name__ == "__main__":
    main()
