# target: cpu
# dynamic: 1
import torch
import torch.nn.functional as F


def f(x):
    parts = x.view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(x.shape[0], x.shape[1], 16)


def args():
    torch.manual_seed(0)
    return (torch.randn(2, 6, 48),)


def other():
    return (torch.ones(2, 1, 48),)
