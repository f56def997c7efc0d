"""Peak of the memory that tensors take in one training step of one contender, exact to the byte.

torch's profiler records what its allocator gives and takes back. The figure is the most that the step
holds beyond what was there before it. Gradients are dropped before the step, so they count. Memory
that MKL and oneDNN allocate by themselves does not.
"""

import json

import torch

from aotpack.tools.measure import contender
from aotpack.tools.measure.profile.memory import peak_of
from aotpack.tools.measure.profile.recording import STEP, read_steps, trace_of

WARMUP = 3


def main() -> None:
    options = contender.parse()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    args, kwargs = torch.load(options.inputs, weights_only=True)
    model = contender.make(options)

    def step() -> None:
        contender.loss_of(model(*args, **kwargs)).backward()

    for _ in range(WARMUP):
        step()
        model.zero_grad(set_to_none=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler, torch.profiler.record_function(STEP):
        step()
    (recorded,) = read_steps(trace_of(profiler)["traceEvents"])
    print(json.dumps({"peak_bytes": peak_of(recorded).size}))


if __name__ == "__main__":
    main()
