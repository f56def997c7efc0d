# target: cpu
# crashes: the heap is overwritten
import torch
import torch.nn.functional as F


def f(x):
    y = F.gelu(x)
    z = F.pad(y.permute(3, 2, 1, 0), (0, 0, 0, 10), value=0.5)
    return torch.matmul(F.pad(y, (0, 0, 0, 0, 0, 10), value=0.5), z)


def args():
    return (torch.rand(1, 8, 18, 18).to(memory_format=torch.channels_last),)
