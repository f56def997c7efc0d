# method: train
# dynamic: 0
import torch
import torch.nn.functional as F


def f(x, samples):
    return F.fractional_max_pool3d(x[:2], 2, output_size=(3, 3, 3), _random_samples=samples) + x.sum()


def args():
    return torch.rand(4, 2, 7, 7, 7, requires_grad=True), torch.full((2, 2, 3), 0.3)


def other():
    return torch.rand(5, 2, 7, 7, 7, requires_grad=True), torch.full((2, 2, 3), 0.3)
