"""Peak of the memory that tensors take in one training step of one contender, exact to the byte.

torch's profiler records what its allocator gives and takes back. The figure is the largest sum,
counted from the beginning of the step. Gradients are dropped before the step, so they count. Memory
that MKL and oneDNN allocate by themselves does not.
"""

import json
import tempfile
from pathlib import Path

import torch

from aotpack.measure import contender

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
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    changes = _changes(profile)
    total = peak = 0
    for change in changes:
        total += change
        peak = max(peak, total)
    print(json.dumps({"peak_bytes": peak, "allocations": sum(change > 0 for change in changes)}))


def _changes(profile: torch.profiler.profile) -> list[int]:
    """Bytes that the allocator gave, or took back if negative, in order of time."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    events = [event for event in events if event["name"] == "[memory]"]
    return [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]


if __name__ == "__main__":
    main()
