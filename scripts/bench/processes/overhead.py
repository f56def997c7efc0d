"""Where the time of a bundle's step goes: contender.py's options, microseconds by part.

First the step as it is, then with Python making the calls, then with the functions that make them wrapped (:mod:`clock`), which
makes it slower: compare the parts with each other and with the step so measured. The best of blocks of twenty steps.
"""

import json
import time
from collections.abc import Callable

import torch
from clock import Clock

from aotpack.measure import contender
from aotpack_loader import load

_RUNTIME = "aotpack_loader.runtime"
CODE, ENGINE = "compiled code", "autograd engine, loss, dropping gradients"
PARTS = {
    "flatten, check arguments": [(f"{_RUNTIME}.inputs", "Inputs.__call__")],
    "check state and modes": [(f"{_RUNTIME}.state", "State.check"), (f"{_RUNTIME}.modes", "Modes.check")],
    "call": [("aotpack_loader.program", "LoadedProgram.forward"), (f"{_RUNTIME}.call", "MethodCall.__call__")],
    "autograd node": [
        (f"{_RUNTIME}.autograd", "Differentiable.__call__"),
        (f"{_RUNTIME}.autograd", "_Step.forward"),
        (f"{_RUNTIME}.autograd", "_Step.backward"),
    ],
    CODE: [("aotpack_loader.devices.aoti", "AotiExecutable.__call__")],
    "epilogue": [(f"{_RUNTIME}.epilogue", "Epilogue.__call__")],
}
BLOCK = 20


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
    plain = min(_block(step) for _ in range(blocks))
    for call in model._aotpack_calls.values():
        call.native = None
    in_python = min(_block(step) for _ in range(blocks))
    clock = Clock(PARTS)
    wrapped, parts = min((_parts(step, clock) for _ in range(blocks)), key=lambda block: block[0])
    parts[ENGINE] = wrapped - sum(parts.values())
    result = {
        "step_microseconds": plain,
        "step_in_python_microseconds": in_python,
        "step_with_wrappers_microseconds": wrapped,
        "parts_microseconds": parts,
        "beside_microseconds": plain - parts[CODE] - parts[ENGINE],
    }
    print(json.dumps(result))


def _block(step: Callable[[], None]) -> float:
    """Microseconds of a step, the mean of a block."""
    begin = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return (time.perf_counter() - begin) / BLOCK * 1e6


def _parts(step: Callable[[], None], clock: Clock) -> tuple[float, dict[str, float]]:
    """Microseconds of a step, the mean of a block, and of its parts."""
    before = dict(clock.seconds)
    whole = _block(step)
    return whole, {name: (seconds - before[name]) / BLOCK * 1e6 for name, seconds in clock.seconds.items()}


if __name__ == "__main__":
    main()
