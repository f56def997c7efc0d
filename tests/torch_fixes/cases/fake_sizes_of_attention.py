# dynamic: 2
# crashes: a division by zero
# refused later: a size of 0
import torch
import torch.nn.functional as F


def f(x):
    return F.scaled_dot_product_attention(x, x, x)


def args():
    return (torch.rand(3, 2, 4, 8),)


def other():
    return (torch.rand(3, 2, 0, 8),)
