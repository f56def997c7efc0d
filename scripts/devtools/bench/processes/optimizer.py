"""Milliseconds of an optimizer's step alone: of a bundle, and of AdamW of torch in its three ways, in turns.

    optimizer.py BUNDLE STEPS

The bundle was built with AdamW. All take steps of the same parameters, on one thread. Figures are medians.
"""

import json
import statistics
import sys
import time

import torch

from aotpack_loader import load

WAYS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def main() -> None:
    torch.set_num_threads(1)
    model = load(sys.argv[1])
    optimizers: dict[str, torch.optim.Optimizer] = {"bundle": model.aotpack.optimizer()}
    for way, options in WAYS.items():
        copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
        optimizers[way] = torch.optim.AdamW(copies, lr=1e-3, **options)
    for optimizer in optimizers.values():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
    seconds: dict[str, list[float]] = {way: [] for way in optimizers}
    for i in range(int(sys.argv[2]) + 3):
        for way, optimizer in optimizers.items():
            start = time.perf_counter()
            optimizer.step()
            if i >= 3:  # the first ones create the state
                seconds[way].append(time.perf_counter() - start)
    print(json.dumps({way: statistics.median(found) * 1e3 for way, found in seconds.items()}))


if __name__ == "__main__":
    main()
