# Inductor: the rest beside whole tiles is written as a whole vector, beyond the tensor
#
# `aggregate_reduction_buffers` takes the loop directly within the outer one for the tile's inner loop.
import torch
import torch.nn.functional as F


def f(x):
    y = F.gelu(x)
    z = F.pad(y.permute(3, 2, 1, 0), (0, 0, 0, 10), value=0.5)
    return torch.matmul(F.pad(y, (0, 0, 0, 0, 0, 10), value=0.5), z)


x = torch.ones(1, 8, 18, 18).to(memory_format=torch.channels_last)
print("expected", f(x).sum())
print("seen", torch.compile(f)(x).sum())
