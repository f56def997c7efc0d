# target: cpu
import torch


def f(x, index, y):
    windows = (x * 3).unfold(0, 3, 1)
    return (x * 2).expand(4, -1).index_add(0, index, y), windows.index_put((index,), y[:, :3].cos())


def args():
    return torch.rand(5), torch.tensor([0, 2]), torch.rand(2, 5)
