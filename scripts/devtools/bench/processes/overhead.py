"""The parts of the time of a bundle's step, in microseconds. Takes contender.py's options.

First the ordinary step, with its calls in native code. Two parts are overhead beside the compiled
code and the autograd engine. One is the forward without its code. The other is the call's autograd
node without the backward's code. The engine computes the gradients of the leaves as in eager.

Then the calls in Python, with the loader's functions wrapped (:mod:`clock`). Wrapping makes them
slower, so compare these parts with each other and with the step measured in this way. Figures are
medians, over blocks of a hundred steps unless noted otherwise.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from aotpack.tools.measure import contender
from aotpack_loader import load
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.runtime.autograd import Executable
from devtools.bench.processes.clock import Clock

_RUNTIME = "aotpack_loader.runtime"
PARTS = {
    "flatten, check arguments": [(f"{_RUNTIME}.inputs", "Inputs.__call__")],
    "check state and modes": [(f"{_RUNTIME}.state", "State.check"), (f"{_RUNTIME}.modes", "Modes.check")],
    "call": [("aotpack_loader.module.program", "LoadedProgram.forward"), (f"{_RUNTIME}.call", "MethodCall.__call__")],
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
    blocks = max(1, options.iterations // BLOCK)
    model = load(options.bundle, backend=options.backend)
    step = _step(model, args, kwargs)
    for _ in range(options.warmup):
        step()
    plain = _median(step, blocks)
    os.environ["AOTPACK_NATIVE_CALL"] = "0"
    python = load(options.bundle, backend=options.backend)
    beside = _beside(model, python, args, kwargs, options.iterations)
    step = _step(python, args, kwargs)
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
        "calls": dict(model.aotpack.calls),
        "beside_microseconds": beside,
        "step_with_wrappers_microseconds": statistics.median(wrapped),
        "parts_microseconds": medians,
        "python_microseconds": sum(value for name, value in medians.items() if name not in outside),
    }
    print(json.dumps(result))


def _step(model: LoadedProgram, args: Any, kwargs: Any) -> Callable[[], None]:
    parameters = list(model.parameters())

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        contender.loss_of(model(*args, **kwargs)).backward()

    return step


def _beside(model: LoadedProgram, python: LoadedProgram, args: Any, kwargs: Any, steps: int) -> dict[str, float]:
    """Microseconds of ``model``'s forward and backward beside compiled code and engine.

    ``python`` records the code's inputs. Each is a single run after a whole step. The caches are
    then as warm for the code alone as inside the step.
    """
    codes, given = _recorded(python, args, kwargs)
    leaf, between = torch.zeros((), requires_grad=True), _step(model, args, kwargs)
    found: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(steps):
        between()
        begin = time.perf_counter()
        result = model.forward(*args, **kwargs)
        whole = {"forward": time.perf_counter() - begin}
        whole["backward"] = _inside(contender.loss_of(result)) - _inside(leaf.clone())
        for name, code in codes.items():
            inputs = list(given[name])
            between()
            with torch.no_grad():
                begin = time.perf_counter()
                returned = code(inputs)
                found[name].append((whole[name] - (time.perf_counter() - begin)) * 1e6)
            del returned  # a step does not free it at this point either
    return {name: statistics.median(values) for name, values in found.items()}


def _recorded(python: LoadedProgram, args: Any, kwargs: Any) -> tuple[dict[str, Executable], dict[str, list[Any]]]:
    """The compiled forward and backward, and their inputs in a step."""
    call: Any = python._aotpack_calls[True, True]
    codes = {"forward": call.forward, "backward": call.differentiable.backward}
    given: dict[str, list[Any]] = {}

    def recorded(name: str) -> Executable:
        def run(inputs: list[Any]) -> list[Any]:
            given[name] = list(inputs)
            return codes[name](inputs)

        return run

    call.differentiable.forward, call.differentiable.backward = recorded("forward"), recorded("backward")
    _step(python, args, kwargs)()
    call.differentiable.forward, call.differentiable.backward = codes.values()
    return codes, given


def _inside(total: torch.Tensor) -> float:
    """Seconds in the node that made ``total``, from its first hook to its last.

    The node of a copy only passes the gradient on. The same measurement for a copy is the cost of
    the hooks.
    """
    times: list[float] = []
    node: Any = total.grad_fn
    node.register_prehook(lambda gradients: times.append(time.perf_counter()))
    node.register_hook(lambda found, given: times.append(time.perf_counter()))
    total.backward()
    return times[1] - times[0]


def _median(run: Callable[[], object], blocks: int) -> float:
    return statistics.median(_block(run) for _ in range(blocks))


def _block(step: Callable[[], object]) -> float:
    """Microseconds of a step, as the mean of a block."""
    begin = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return (time.perf_counter() - begin) / BLOCK * 1e6


if __name__ == "__main__":
    main()
