# Inductor: `x.bfloat16().float()` is `x`
#
# The cast is computed in float32, and rounded only where it is stored. `emulate_precision_casts`
# acts on the GPU alone.
import torch


def f(x):
    return x.bfloat16().float()


x = torch.full((33,), 0.1)
print("expected", f(x)[0].item())
print("seen", torch.compile(f)(x)[0].item())
