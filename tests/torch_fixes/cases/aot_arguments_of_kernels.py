# target: cpu
# refused: yes
import torch


def f(x, y):
    return torch.diagonal_scatter(x * 2, y)


def args():
    return torch.ones(3, 3), torch.ones(1)
