"""Step times of eager, ``torch.compile`` and bundles, side by side in one process. The benchmark starts this file.

A step is a forward, a backward and the removal of the gradients. With ``--optimizer`` it includes a
step of AdamW: eager's with ``fused=True``, one that ``torch.compile`` has compiled, and the bundle's own.
With ``--infer`` it is a forward in eval mode without gradients. Each contender has a model of its own
with the same weights.

Rounds alternate between the contenders, and every other round runs in reverse order. Other load on
the machine then affects all of them equally. The figure of a round is the median of its steps. The
figure of a contender is the median of its rounds. A ratio is the median of the rounds' ratios.

    step.py --model model.py --inputs inputs.pt --bundle cpu=m.aotpack --artifact export=m.pt2 --threads 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from aotpack.tools.measure import contender

Step = Callable[[], None]
REFERENCE = "compile"
ENOUGH, PATIENCE = 5, 30.0
"""After so many rounds, stop after so many seconds: large networks, and threads that wait for each other on a busy machine."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--bundle", action="append", default=[], metavar="NAME=PATH", help="NAME is the target's")
    parser.add_argument("--artifact", action="append", default=[], metavar="KIND=PATH", help="aot_compile, export or aoti")
    parser.add_argument("--trust")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each contender in each round")
    parser.add_argument("--dynamic", action="store_true", help="torch.compile takes the inputs' first dimension as dynamic")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--optimizer", action="store_true")
    what.add_argument("--infer", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    args, kwargs = torch.load(options.inputs, weights_only=True)
    steps = {name: step_of(name, model, args, kwargs, options) for name, model in contenders(options, args, kwargs).items()}
    found = alternate(steps, options.rounds, options.seconds)
    print(json.dumps({"threads": torch.get_num_threads(), **found}))


def contenders(options: argparse.Namespace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    models = {"eager": contender.user_model(options.model)}
    state = models["eager"].state_dict()
    if options.dynamic:
        for tensor in [*args, *kwargs.values()]:
            torch._dynamo.mark_dynamic(tensor, 0)
    compiled = contender.user_model(options.model)
    models[REFERENCE] = torch.compile(compiled)
    filled = [compiled]
    for name, path in (word.split("=", 1) for word in options.bundle):
        import aotpack_loader

        models[name] = aotpack_loader.load(path, backend=name, trust=options.trust)
        filled.append(models[name])
    for kind, path in (word.split("=", 1) for word in options.artifact):
        given = ["--kind", kind, "--artifact", path, "--inputs", options.inputs, *(["--infer"] if options.infer else [])]
        models[kind] = contender.make(contender.parse([*given, "--model", options.model]))
    for model in filled:
        model.load_state_dict(state)
    if options.infer:
        for model in (models["eager"], *filled):
            model.eval()
    return models


def step_of(name: str, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: argparse.Namespace) -> Step:
    parameters = list(model.parameters())

    def infer() -> None:
        with torch.no_grad():
            model(*args, **kwargs)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        contender.loss_of(model(*args, **kwargs)).backward()

    if options.infer:
        return infer
    if not options.optimizer:
        return step
    update = contender.update_of(name, model)

    def full() -> None:
        step()
        update()

    return full


def alternate(steps: dict[str, Step], rounds: int, seconds: float) -> dict[str, Any]:
    counts = {}
    for name, step in steps.items():
        for _ in range(5):
            step()
        once = statistics.median(timed(step) for _ in range(7))
        counts[name] = max(3, int(seconds / once))
    medians: dict[str, list[float]] = {name: [] for name in steps}
    begin = time.perf_counter()
    for number in range(rounds):
        if number >= ENOUGH and time.perf_counter() - begin > PATIENCE:
            break
        for name in list(steps) if number % 2 == 0 else reversed(steps):
            step = steps[name]
            step()  # clears from the caches what the previous contender left
            medians[name].append(statistics.median(timed(step) for _ in range(counts[name])))
    ratios = {
        name: [one / other for one, other in zip(values, medians[REFERENCE], strict=True)] for name, values in medians.items()
    }
    return {
        "rounds": len(medians[REFERENCE]),
        "seconds": {name: statistics.median(values) for name, values in medians.items()},
        "best_seconds": {name: min(values) for name, values in medians.items()},
        "ratio_to_compile": {name: statistics.median(values) for name, values in ratios.items()},
        "ratio_range": {name: [min(values), max(values)] for name, values in ratios.items()},
        "ratio_quartiles": {name: quartiles(values) for name, values in ratios.items()},
        "steps_per_round": counts,
    }


def quartiles(values: list[float]) -> list[float]:
    """The values below which a quarter and three quarters are."""
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]


def timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
