"""Runs a model through XLA on the CPU, measured from after ``import torch``, and prints JSON.

    xla.py --kind lazy|openxla --model model.py --inputs inputs.pt
    xla.py --kind bundle|compiled --bundle m.aotpack --inputs inputs.pt

``lazy`` is plain torch_xla, ``openxla`` is ``torch.compile(backend="openxla")``, ``bundle`` is the
target ``xla``, and ``compiled`` is ``xla:cpu``. A step is a forward and a backward without an
optimizer. It ends when its loss has been read and its gradients are complete.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from devtools.files import import_file
from devtools.paths import ROOT

contender = import_file(ROOT / "aotpack/tools/measure/contender.py", "contender")  # not through aotpack: imports are measured
loss_of, user_model = contender.loss_of, contender.user_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("lazy", "openxla", "bundle", "compiled"), required=True)
    parser.add_argument("--model")
    parser.add_argument("--bundle")
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    args, kwargs = torch.load(options.inputs)
    clock = Clock()
    finish, device = _runtime(options.kind)
    clock.lap("import")
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), (args, kwargs))
    finish()
    clock.lap("move the inputs")
    model = _model(options, device)
    clock.lap("make")
    loss = _step(model, args, kwargs, finish)
    clock.lap("first step")
    compiled = _compiled()
    _step(model, args, kwargs, finish)  # torch_xla compiles again if the first step differed from the others
    for _ in range(2):
        _step(model, args, kwargs, finish)
    times = [_timed(lambda: _step(model, args, kwargs, finish)) for _ in range(options.steps)]
    print(
        json.dumps(
            {
                "seconds": clock.laps,
                "xla_compile_seconds": compiled,
                "step_seconds": statistics.median(times),
                "loss": loss,
                "versions": {"torch": torch.__version__},
            }
        )
    )


class Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def _runtime(kind: str) -> tuple[Callable[[], None], torch.device]:
    """A function that waits until everything is computed, and the device.

    Imports the kind's packages and creates its client.
    """
    if kind == "compiled":
        from aotpack_loader import _jax_compat

        _jax_compat.cpu_client()
        return lambda: None, torch.device("cpu")
    import torch_xla
    import torch_xla.core.xla_model as xla_model

    device = torch_xla.device()

    def finish() -> None:
        torch_xla.sync()
        xla_model.wait_device_ops()

    return finish, device


def _model(options: argparse.Namespace, device: torch.device) -> Any:
    if options.kind in ("bundle", "compiled"):
        from aotpack_loader import load

        return load(options.bundle, backend="xla" if options.kind == "bundle" else "xla:cpu")
    torch.manual_seed(0)
    model = user_model(options.model).to(device)
    return torch.compile(model, backend="openxla") if options.kind == "openxla" else model


def _step(model: Any, args: Any, kwargs: Any, finish: Callable[[], None]) -> Any:
    loss = loss_of(model(*args, **kwargs))
    loss.backward()
    finish()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = None
    return loss.item()


def _compiled() -> float:
    """Seconds spent in XLA's compiler so far, as torch_xla reports them."""
    if "torch_xla" not in sys.modules:
        return 0.0
    from torch_xla.debug import metrics

    found = metrics.metric_data("CompileTime")
    return 0.0 if found is None else found[1] / 1e9


def _timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
