"""One way to run a model, measured in its own fresh process: a script, started by path (``python -I contender.py``).

The clock starts after ``import torch`` and stops after the first forward and backward: it covers importing the
model (or aotpack_loader), making it, compiling (or loading) and the step. Every contender does the same step, forward
+ backward + dropping the gradients; no optimizer, because making one imports Dynamo and would hide the difference.

    contender.py --kind eager|compile --model model.py --inputs inputs.pt --json
    contender.py --kind bundle --bundle m.aotpack [--backend portable] --inputs inputs.pt --json

The inputs come from a file, so that a bundle is measured without the model's source
and no contender pays for making them. It imports nothing before the clock starts that the contenders would need.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from typing import Any

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.export", "sympy", "triton", "aotpack")
"""What a bundle must not import."""

imported: list[float] = []
"""When the loader had been imported."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["eager", "compile", "bundle"], required=True)
    parser.add_argument("--model", help="model.py[:factory]; not read by --kind bundle")
    parser.add_argument("--bundle")
    parser.add_argument("--backend", help="target of the bundle; default: the best that fits")
    parser.add_argument("--trust", action="append", help="a digest, or all")
    parser.add_argument("--inputs", required=True, help="(args, kwargs) as torch.save wrote them")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.kind == "bundle" and not options.bundle:
        parser.error("--kind bundle needs --bundle")
    if options.kind != "bundle" and not options.model:
        parser.error(f"--kind {options.kind} needs --model")
    return options


def user_model(spec: str) -> Any:
    """What a training script does: run the file and call its factory. Nothing of aotpack takes part."""
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


def make(options: argparse.Namespace) -> Any:
    if options.kind == "bundle":
        from aotpack_loader import load

        imported.append(time.perf_counter())
        return load(options.bundle, backend=options.backend, trust="all" if options.trust == ["all"] else options.trust)
    model = user_model(options.model)
    if options.kind == "eager":
        return model
    import torch

    return torch.compile(model)


def loss_of(value: Any) -> Any:
    """The first floating-point scalar of a nested result, or else its floating-point tensors' means, summed."""
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


def main() -> None:
    options = parse()
    begin = time.perf_counter()
    import torch

    import_torch = time.perf_counter() - begin
    if options.threads:
        torch.set_num_threads(options.threads)
    args, kwargs = torch.load(options.inputs, weights_only=True)
    before = set(sys.modules)

    begin, begin_cpu = time.perf_counter(), time.process_time()
    model = make(options)
    ready = time.perf_counter()
    loss = loss_of(model(*args, **kwargs))
    loss.backward()
    first_step, first_step_cpu = time.perf_counter(), time.process_time()

    added = set(sys.modules) - before
    parameters = list(model.parameters())
    times = []
    for _ in range(options.warmup + options.iterations):
        for parameter in parameters:
            parameter.grad = None
        start = time.perf_counter()
        loss_of(model(*args, **kwargs)).backward()
        times.append(time.perf_counter() - start)

    result = {
        "kind": options.kind,
        "backend": model.aotpack.backend if options.kind == "bundle" else None,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "t_import_torch": import_torch,
        "t_from_import_to_first_step": first_step - begin,
        "t_make": ready - begin,
        "t_first_step": first_step - ready,
        "t_import": imported[0] - begin if imported else None,
        "cpu_from_import_to_first_step": first_step_cpu - begin_cpu,
        "t_step_median": statistics.median(times[options.warmup :]) if options.iterations else None,
        "iterations": options.iterations,
        "modules_added": len(added),
        "compiler_modules_added": sum(name.startswith(COMPILERS) and not name.startswith("aotpack_") for name in added),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loss": loss.item(),
    }
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:28} {value}")


if __name__ == "__main__":
    main()
