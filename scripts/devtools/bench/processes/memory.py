"""Peak memory of one training step of one contender, in a new process of its own.

After a few steps the kernel's high-water mark of the resident set is reset, then another step runs.
The figure is the increase by that step. The benchmark makes malloc return freed memory at once, so
that the figure shows live memory. Gradients are dropped before the step, so they count. With
``--optimizer`` the step updates the parameters; the optimizer's state is there before.
BENCH_MEMORY_BUDGET is the share of activations that torch.compile may save.
"""

import gc
import json
import os
import statistics
from pathlib import Path

from aotpack.tools.measure import contender
from devtools.bench.processes.mapped import status

WARMUP, STEPS = 3, 5


def main() -> None:
    options = contender.parse()
    import torch

    if budget := os.environ.get("BENCH_MEMORY_BUDGET"):
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = float(budget)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    args, kwargs = torch.load(options.inputs, weights_only=True)
    model = contender.make(options)
    parameters = list(model.parameters())

    update = contender.update_of(options.kind, model) if options.optimizer else lambda: None

    def step() -> None:
        contender.loss_of(model(*args, **kwargs)).backward()
        update()

    peaks = []
    for number in range(WARMUP + STEPS):
        for parameter in parameters:
            parameter.grad = None
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        step()
        if number >= WARMUP:
            peaks.append(status("VmHWM") - before)
    print(json.dumps({"peak_bytes": statistics.median(peaks), "resident_bytes": status("VmRSS")}))


if __name__ == "__main__":
    main()
