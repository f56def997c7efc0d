"""Measures one way to run a model, in a fresh process.

It is a script that is started by path (``python -I contender.py``). The clock starts after
``import torch`` and stops after the first forward and backward. It covers importing the model (or
aotpack_loader), making it, compiling (or loading) and the step. Every contender does the same
step: forward, backward and dropping the gradients. With ``--optimizer`` it includes a step of AdamW:
eager's with ``fused=True``, one that ``torch.compile`` compiles, or that of the bundle. Making one of
torch imports Dynamo.

    contender.py --kind eager|compile --model model.py --inputs inputs.pt --json
    contender.py --kind bundle --bundle m.aotpack [--backend portable] --inputs inputs.pt --json
    contender.py --kind aot_compile --artifact m.bin --model model.py --inputs inputs.pt --json
    contender.py --kind export|aoti --artifact m.pt2 --inputs inputs.pt --json

``--import`` names the user's modules that register operators or define tensor subclasses, as in
``aotpack run``. ``--infer`` measures a forward in eval mode without gradients instead of a step.

The inputs come from a file. So a bundle is measured without the model's source, and no contender
spends time on making them. Before the clock starts, the script imports nothing that a contender
would need.
"""

import argparse
import functools
import importlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.export", "sympy", "triton", "aotpack")
"""The modules that loading a bundle must not import."""

KINDS = ("eager", "compile", "bundle", "aot_compile", "export", "aoti")

imported: list[float] = []
"""The time at which the loader had been imported."""


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse ``words``, or else the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--model", help="model.py[:factory]; not read by --kind bundle")
    parser.add_argument("--bundle")
    parser.add_argument("--artifact", help="what aot_compile or torch.export saved, or AOTInductor's package")
    parser.add_argument("--backend", help="target of the bundle; default: the best that fits")
    parser.add_argument("--trust", action="append", help="a digest, or all")
    parser.add_argument("--import", dest="modules", action="append", default=[], help="before the clock starts")
    parser.add_argument("--inputs", required=True, help="(args, kwargs) as torch.save wrote them")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--infer", action="store_true", help="a forward in eval mode without gradients")
    what.add_argument("--optimizer", action="store_true", help="a step of AdamW, too; of --kind eager, compile or bundle")
    parser.add_argument("--device", default="cpu", help="where the model and its inputs are")
    parser.add_argument("--autocast", help="call the model under autocast to this element type")
    parser.add_argument("--spawned", type=float, help="time.perf_counter() of who started this process, when it did")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    needs = ["bundle"] if options.kind == "bundle" else []
    needs += ["artifact"] if options.kind in ("aot_compile", "export", "aoti") else []
    needs += ["model"] if options.kind in ("eager", "compile", "aot_compile") else []
    for name in needs:
        if not getattr(options, name):
            parser.error(f"--kind {options.kind} needs --{name}")
    return options


def user_model(spec: str) -> Any:
    """Make the model as a training script does: run the file and call its factory.

    This uses nothing of aotpack.
    """
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    path, _, factory = spec.partition(":")
    sys.path.insert(0, str(Path(path).resolve().parent))
    found = spec_from_file_location("contender_model", path)
    assert found is not None
    assert found.loader is not None
    module = sys.modules["contender_model"] = module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, factory or "model")()


def user_classes(modules: Sequence[str]) -> list[Any]:
    """Import the user's modules, which may be in the working directory.

    Returns their tensor subclasses.
    """
    if modules:
        sys.path.insert(0, os.getcwd())
    values = [value for name in modules for value in vars(importlib.import_module(name)).values()]
    return [value for value in values if isinstance(value, type) and hasattr(value, "__tensor_unflatten__")]


class Compiled:
    """A compiled function that is not a module, with the parameters whose gradients it computes."""

    def __init__(self, function: Callable[..., Any], parameters: Iterable[Any] = ()) -> None:
        self._function, self._parameters = function, list(parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def parameters(self) -> list[Any]:
        return self._parameters


def make(options: argparse.Namespace, subclasses: Sequence[type] = ()) -> Any:
    if options.kind == "bundle":
        from aotpack_loader import load

        imported.append(time.perf_counter())
        trust = "all" if options.trust == ["all"] else options.trust
        model = load(options.bundle, device=options.device, backend=options.backend, trust=trust, subclasses=subclasses)
    elif options.kind in ("export", "aoti"):
        return _packaged(options)
    else:
        model = user_model(options.model)
        model = model if options.device == "cpu" else model.to(options.device)
    if options.infer:
        model.eval()
    if options.kind == "aot_compile":
        import torch

        with open(options.artifact, "rb") as file:
            function = torch.compiler.load_compiled_function(file)
        return Compiled(functools.partial(function, model), model.parameters())
    if options.kind == "compile":
        import torch

        return torch.compile(model)
    return model


def _packaged(options: argparse.Namespace) -> Any:
    """Load a program that torch.export saved, or a package of AOTInductor, which computes no gradients."""
    import torch

    if options.kind == "export":
        return torch.export.load(options.artifact).module()
    import torch._inductor

    return Compiled(torch._inductor.aoti_load_package(options.artifact))


def update_of(kind: str, model: Any) -> Callable[[], Any]:
    """The step of AdamW that a user of this kind takes."""
    if kind not in ("eager", "compile"):
        return model.aotpack.optimizer().step  # type: ignore[no-any-return]
    import torch

    if kind == "eager":
        return torch.optim.AdamW(model.parameters(), fused=True).step
    return torch.compile(torch.optim.AdamW(model.parameters()).step)


def loss_of(value: Any) -> Any:
    """Return the first floating-point scalar of a nested result, or else the sum of its floating-point tensors' means."""
    floating = [tensor for tensor in tensors(value) if tensor.is_floating_point()]
    for tensor in floating:
        if tensor.dim() == 0:
            return tensor
    return sum(tensor.mean() for tensor in floating)


def tensors(value: Any) -> list[Any]:
    if hasattr(value, "is_floating_point"):
        return [value]
    if hasattr(value, "values"):
        return [tensor for item in value.values() for tensor in tensors(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def number(loss: Any) -> float:
    """Return the value of a loss. For a tensor subclass, use its first inner tensor."""
    while hasattr(loss, "__tensor_flatten__"):
        loss = getattr(loss, loss.__tensor_flatten__()[0][0])
    return float(loss.item())


def main() -> None:
    options = parse()
    begin = time.perf_counter()
    import torch

    import_torch = time.perf_counter() - begin
    if options.threads:
        torch.set_num_threads(options.threads)
    subclasses = user_classes(options.modules)
    with torch.serialization.safe_globals(subclasses):
        args, kwargs = torch.load(options.inputs, weights_only=True)
    device_type = torch.device(options.device).type
    if device_type != "cpu":
        from torch.utils._pytree import tree_map_only

        def moved(tensor: Any) -> Any:  # twin: aotpack_loader.replay, which a contender may not import before its clock starts
            return tensor.detach().to(options.device).requires_grad_(tensor.requires_grad)

        args, kwargs = tree_map_only(torch.Tensor, moved, (args, kwargs))
    before = set(sys.modules)
    gradients = torch.no_grad if options.infer else nullcontext
    dtype = getattr(torch, options.autocast) if options.autocast else None
    autocast = functools.partial(torch.autocast, device_type, dtype=dtype) if dtype else nullcontext

    def step() -> Any:
        with gradients(), autocast():
            loss = loss_of(model(*args, **kwargs))
        if not options.infer:
            loss.backward()
        if options.optimizer:
            update()
        if device_type != "cpu":
            torch.accelerator.synchronize()  # the device works on after a call returns
        return loss

    begin, begin_cpu = time.perf_counter(), time.process_time()
    model = make(options, subclasses)
    if options.optimizer:
        update = update_of(options.kind, model)
    ready = time.perf_counter()
    loss = step()
    first_step, first_step_cpu = time.perf_counter(), time.process_time()

    added = set(sys.modules) - before
    times = step_times(step, list(model.parameters()), options.warmup, options.iterations)
    result = {
        "kind": options.kind,
        "backend": model.aotpack.backend if options.kind == "bundle" else None,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "t_import_torch": import_torch,
        "t_from_spawn_to_first_step": None if options.spawned is None else first_step - options.spawned,
        "t_from_import_to_first_step": first_step - begin,
        "t_make": ready - begin,
        "t_first_step": first_step - ready,
        "t_import": imported[0] - begin if imported else None,
        "cpu_from_import_to_first_step": first_step_cpu - begin_cpu,
        "t_step_median": statistics.median(times) if options.iterations else None,
        "t_steps": times,
        "iterations": options.iterations,
        "modules_added": len(added),
        "compiler_modules_added": sum(name.startswith(COMPILERS) and not name.startswith("aotpack_") for name in added),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loss": number(loss),
    }
    show(result, as_json=options.json)


def step_times(step: Callable[[], Any], parameters: Sequence[Any], warmup: int, iterations: int) -> list[float]:
    """The seconds of each step after ``warmup`` others. Gradients are dropped before each."""
    times = []
    for _ in range(warmup + iterations):
        for parameter in parameters:
            parameter.grad = None
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times[warmup:]


def show(result: dict[str, Any], *, as_json: bool) -> None:
    """Print all as JSON, or a line for each but the single steps."""
    if as_json:
        print(json.dumps(result))
        return
    for key in [key for key in result if key != "t_steps"]:
        print(f"{key:28} {result[key]}")


if __name__ == "__main__":
    main()
