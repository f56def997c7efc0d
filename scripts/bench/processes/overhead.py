"""Where the time of a bundle's step goes: contender.py's options, microseconds by part.

First the step as it is, then with the loader's functions wrapped (:mod:`clock`), which makes it slower: compare the parts with
each other and with the step so measured. Medians over blocks of a hundred steps.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from clock import Clock

from aotpack.measure import contender
from aotpack_loader import load

_RUNTIME = "aotpack_loader.runtime"
PARTS = {
    "flatten, check arguments": [(f"{_RUNTIME}.inputs", "Inputs.__call__")],
    "check state and modes": [(f"{_RUNTIME}.state", "State.check"), (f"{_RUNTIME}.modes", "Modes.check")],
    "call": [("aotpack_loader.program", "LoadedProgram.forward"), (f"{_RUNTIME}.call", "MethodCall.__call__")],
    "autograd node": [
        (f"{_RUNTIME}.autograd", "Differentiable.__call__"),
        (f"{_RUNTIME}.autograd", "_Step.forward"),
        (f"{_RUNTIME}.autograd", "_Step.backward"),
    ],
    "compiled code": [("aotpack_loader.devices.aoti", "AotiExecutable.__call__")],
    "epilogue": [(f"{_RUNTIME}.epilogue", "Epilogue.__call__")],
}
BLOCK = 100


def main() -> None:
    options = contender.parse()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    args, kwargs = torch.load(options.inputs, weights_only=True)
    model = load(options.bundle, backend=options.backend)
    parameters = list(model.parameters())

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        contender.loss_of(model(*args, **kwargs)).backward()

    blocks = max(1, options.iterations // BLOCK)
    for _ in range(options.warmup):
        step()
    plain = statistics.median(_block(step) for _ in range(blocks))
    clock = Clock(PARTS)
    parts: dict[str, list[float]] = {name: [] for name in PARTS}
    wrapped = []
    for _ in range(blocks):
        before = dict(clock.seconds)
        wrapped.append(_block(step))
        for name, values in parts.items():
            values.append((clock.seconds[name] - before[name]) / BLOCK * 1e6)
    medians = {name: statistics.median(values) for name, values in parts.items()}
    medians["autograd engine, loss, dropping gradients"] = statistics.median(wrapped) - sum(medians.values())
    outside = ("compiled code", "autograd engine, loss, dropping gradients")
    result = {
        "step_microseconds": plain,
        "step_with_wrappers_microseconds": statistics.median(wrapped),
        "parts_microseconds": medians,
        "python_microseconds": sum(value for name, value in medians.items() if name not in outside),
    }
    print(json.dumps(result))


def _block(step: Callable[[], None]) -> float:
    """Microseconds of a step, the mean of a block."""
    begin = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return (time.perf_counter() - begin) / BLOCK * 1e6


if __name__ == "__main__":
    main()
