import torch
import torch.nn.functional as F


def f(x):
    return F.interpolate(x, scale_factor=1.3)


def args():
    return (torch.arange(3.0)[None, None],)
