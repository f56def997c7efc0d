# target: cpu
# method: train
import torch
import torch.nn.functional as F


def f(x, y):
    return F.gelu(x).amin(-1), torch.erf(x + y).amin(-1), torch.atan2(x, y).t().amin(0)


def args():
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    return torch.randn(2, 3, generator=one).requires_grad_(), torch.randn(2, 3, generator=other)
