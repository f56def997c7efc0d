# method: train
# dynamic: 0
import torch


def f(x, y):
    return torch.cdist(x, y), torch.cdist(x, y, p=1.0), torch.cdist(y, x)


def args():
    return torch.rand(4, 3, dtype=torch.float64).requires_grad_(), torch.rand(5, 3, dtype=torch.float64).requires_grad_()


def other():
    return torch.rand(40, 3, dtype=torch.float64).requires_grad_(), torch.rand(5, 3, dtype=torch.float64).requires_grad_()
