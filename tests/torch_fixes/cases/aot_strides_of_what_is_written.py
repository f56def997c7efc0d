import torch


def f(x, y):
    z = x.t() * 1
    z.index_add_(0, torch.tensor([0, 2]), y)
    return z.as_strided((5,), (2,)) * 2, z


def args():
    return torch.rand(4, 6), torch.rand(2, 4)
