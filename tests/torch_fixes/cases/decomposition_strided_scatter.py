# target: cpu
# crashes: memory beyond the tensor is read and written
import torch


def f(x, y):
    return x[4:].as_strided_scatter(y, (2,), (1,), 33)


def args():
    return torch.rand(6, 8), torch.rand(2)
