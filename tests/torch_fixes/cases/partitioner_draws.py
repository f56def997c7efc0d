# method: train
# rng: eager
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def dropped(x):
    return F.dropout(x.sin(), 0.5).cos()


def f(x):
    drawn = torch.empty_like(x).exponential_() - torch.empty_like(x).exponential_()
    return x * drawn + checkpoint(dropped, x, use_reentrant=False)


def args():
    return (torch.rand(4, 5, requires_grad=True),)
