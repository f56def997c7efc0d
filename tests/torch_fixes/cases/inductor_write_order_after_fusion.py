# target: cpu
import torch


def f(x, y, w, index, big):
    earlier = (y.t() + w) @ x
    z = x @ x.t()
    z.index_put_((index,), (big @ big)[:2, :6])
    return earlier, z + w


def args():
    return torch.rand(6, 8), torch.rand(6, 6), torch.rand(6, 6), torch.tensor([0, 2]), torch.rand(64, 64)
