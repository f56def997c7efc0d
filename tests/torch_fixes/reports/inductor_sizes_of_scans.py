# Inductor: a scan over rows of a tensor whose sizes vary does not compile: `KeyError: s77`
#
# `decompose_scan_to_while_loop` allocates results by sizes that are operands of the scan. AOTAutograd traces scans without
# such operands.
import torch
from torch._higher_order_ops.scan import scan


def step(state, row):
    state = state * 2 + row.sin()
    return state, state.clone()


def f(x):
    return scan(step, torch.zeros_like(x[0]), x[1:])[1].sum()


for name, call in (("expected", f), ("seen", torch.compile(f, dynamic=True))):
    x = torch.ones(5, 3, requires_grad=True)
    try:
        call(x).backward()
        print(name, x.grad.sum())
    except Exception as error:
        print(name, next(line for line in str(error).splitlines() if "Error: " in line))
