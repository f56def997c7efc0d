# target: cpu
# method: train
import torch
import torch.nn.functional as F


def f(x, y):
    return F.gelu(x).amin(-1), torch.erf(x + y).amin(-1), torch.lgamma(x.abs() + 0.1).amin(-1)


def args():
    torch.manual_seed(0)
    return torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
