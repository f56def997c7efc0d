# target: cpu
import torch


def f(a, b):
    return torch.bmm(a, b)


def args():
    return torch.randint(9, (1, 1, 3), dtype=torch.int8), torch.randint(9, (1, 3, 2), dtype=torch.int8)
