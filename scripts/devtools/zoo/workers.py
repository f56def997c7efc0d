"""The processes behind an entry. One builds the bundle and records eager; a new one loads it and does the same.

Each reads ``entry.json`` in its folder and writes ``build.json`` or ``check.json``, with its
results or the reason of its failure. Its output goes to a log. The checking process runs this file
in isolation (``-I``). It imports nothing else of this folder.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

LEARNING_RATE = 0.05
STEPS = 2
THREADS = 1
"""On a busy machine OpenMP's barriers cost a hundred times such a small step."""
SEED = 1000

SOURCES = ("transformers", "timm", "diffusers", "torchvision", "devtools")
"""What the second process cannot import."""
COMPILERS = ("torch._dynamo", "torch._inductor", "sympy", "triton", "aotpack")
"""What it must not have imported."""


def run(name: str, folder: Path) -> None:
    """Run a process's work. Its answer or its error goes to a file."""
    with (folder / f"{name}.log").open("w") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    entry = json.loads((folder / "entry.json").read_text())
    torch.set_num_threads(THREADS)
    try:
        answer = {"build": build, "check": check}[name](entry, folder)
    except Exception as error:
        traceback.print_exc()
        answer = {"error": explain(error)}
    (folder / f"{name}.json").write_text(json.dumps(answer))


def explain(error: Exception) -> str:
    """An exception's type and first lines."""
    lines = [text.strip() for text in str(error).strip().splitlines() if text.strip()]
    text = " ".join(lines[:4])
    return f"{type(error).__name__}: {text[:600]}"


def build(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make the model and its inputs, record eager, build the bundle.

    With a dynamic batch no step has the size of the build.
    """
    import aotpack
    from devtools.zoo.registry import batch_of
    from devtools.zoo.roll import ARCHITECTURES

    item = ARCHITECTURES[entry["name"]]
    torch.manual_seed(0)
    model = awake(item.model())
    size = 2 * item.batch if entry["dynamic"] else item.batch
    inputs = item.inputs(size)
    sizes = [size - 1, size + 1, size + 2] if entry["dynamic"] else [size] * (STEPS + 1)
    batches = [item.inputs(size) for size in sizes]
    found: dict[str, Any] = {}
    if item.unstable and entry["target"] != "portable":
        found["moved_by_rounding"] = moved = moved_by_rounding(model, batches)
        if moved <= item.tolerance:
            raise RuntimeError(f"not unstable: a rounding moves gradients by {moved:.0e}, so float32 is to be compared")
        model, inputs, batches = model.double(), in_double(inputs), [in_double(batch) for batch in batches]
    torch.save(batches, folder / "inputs.pt")
    reference, _ = record(copy.deepcopy(model), batches, infer="infer" in entry["methods"])
    save_file(reference, folder / "eager.safetensors")
    if not all(value.isfinite().all() for name, value in reference.items() if name.startswith(("loss", "gradients"))):
        raise RuntimeError("eager's own loss or gradients are not finite")

    before = copy.deepcopy(model.state_dict())
    report = aotpack.build(
        model,
        (),
        inputs,
        out=folder / "zoo.aotpack",
        targets=(entry["target"],),
        dynamic_shapes=batch_of(inputs) if entry["dynamic"] else None,
        methods=entry["methods"],
        branches=item.branches,
        rng="eager",
        cache=False,
    )
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    if changed:
        raise RuntimeError(f"building changed the model: {', '.join(changed)}")
    stages = {stage.name: round(stage.seconds, 3) for stage in report.stages}
    return found | {
        "torch": torch.__version__,
        "package": f"{item.package} {version(item.package)}",
        "draws": draws(reference),
        "parameters": sum(p.numel() for p in model.parameters()),
        "build_seconds": {**stages, "total": round(sum(stages.values()), 3)},
        "bundle_bytes": report.size,
        "saved_bytes": report.saved_bytes.get("train", 0),
        "warnings": list(report.warnings),
    }


def awake(model: nn.Module) -> nn.Module:
    """Replace parameters that are all zero by small values.

    A last layer of zeros would give zero gradients before it.
    """
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model


def in_double(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.double() if is_real(value) else value for name, value in inputs.items()}


def is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def moved_by_rounding(model: nn.Module, batches: Sequence[dict[str, Any]], trials: int = 4) -> float:
    """The largest relative error of eager's gradients under rounding of the inputs.

    Every input moves to an adjacent number, up or down at random.
    """
    from devtools.zoo.compare import compare

    reference, _ = record(copy.deepcopy(model), batches, infer=False)
    errors = []
    for trial in range(trials):
        torch.manual_seed(trial)
        moved = [{name: next_to(value) if is_real(value) else value for name, value in batch.items()} for batch in batches]
        found, _ = record(copy.deepcopy(model), moved, infer=False)
        errors.append(compare(reference, found)["gradients"])
    return max(errors)


def next_to(value: Tensor) -> Tensor:
    """The floating-point numbers adjacent to these, each above or below at random."""
    return torch.nextafter(value, torch.randn_like(value) * math.inf)


def draws(reference: Mapping[str, Tensor]) -> bool:
    """Whether a training step changed the generator's state."""
    return not torch.equal(reference["generator/0"], torch.manual_seed(SEED).get_state())


def check(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Load the bundle without access to the model's source, and record its results."""
    sys.meta_path.insert(0, OutOfReach())
    import aotpack_loader

    batches = torch.load(folder / "inputs.pt", weights_only=True)
    start = time.perf_counter()
    model = aotpack_loader.load(folder / "zoo.aotpack", backend=entry["target"])
    load_seconds = time.perf_counter() - start
    found, step_seconds = record(model, batches, infer="infer" in entry["methods"])
    save_file(found, folder / "bundle.safetensors")
    imported = [name for name in (*SOURCES, *COMPILERS) if name in sys.modules]
    if imported:
        raise RuntimeError(f"loading and training imported {', '.join(imported)}")
    return {
        "front_end": model.aotpack.program.methods["train"].captured_with,
        "load_seconds": round(load_seconds, 5),
        "first_step_seconds": round(step_seconds[0], 5),
        "second_step_seconds": round(step_seconds[1], 5),
    }


class OutOfReach:
    """An import finder that runs first and refuses the model's packages."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in SOURCES:
            raise ImportError(f"{name} is out of reach here")


# ---------------------------------------------------------------- what a model does


def record(model: nn.Module, batches: Sequence[dict[str, Any]], *, infer: bool = True) -> tuple[dict[str, Tensor], list[float]]:
    """Train a step on each batch but the last, then infer on the last.

    Returns all results by name, and the steps' seconds.

    SGD is implemented here, because a ``torch.optim`` optimizer imports the compiler.
    """
    *training, last = batches
    found: dict[str, Tensor] = {}
    seconds = []
    model.train()
    for number, inputs in enumerate(training):
        torch.manual_seed(SEED + number)
        start = time.perf_counter()
        output = model(**inputs)
        output["loss"].backward()
        seconds.append(time.perf_counter() - start)
        found |= {f"generator/{number}": torch.get_rng_state()}
        found |= {f"loss/{number}": output["loss"], **named(f"outputs/{number}", output)}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradients/{number}/{name}"] = parameter.grad
                parameter.data.add_(parameter.grad, alpha=-LEARNING_RATE)
                parameter.grad = None
        found |= {f"buffers/{number}/{name}": value.clone() for name, value in model.named_buffers()}
    found |= {f"parameters/{name}": value for name, value in model.named_parameters()}
    if infer:
        model.eval()
        with torch.no_grad():
            found |= named("inference", model(**last))
    return {name: value.detach().clone().contiguous() for name, value in found.items()}, seconds


def named(path: str, value: Any) -> dict[str, Tensor]:
    """The tensors of a nested result by path, for any containers."""
    if isinstance(value, Tensor):
        return {path: value}
    return {name: tensor for key, item in items_of(value) for name, tensor in named(f"{path}/{key}", item).items()}


def items_of(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (tuple, list)):
        yield from enumerate(value)
    elif is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
