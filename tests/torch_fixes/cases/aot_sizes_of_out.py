import warnings

import torch

warnings.filterwarnings("ignore", "An output with one or more elements was resized")


def f(x, out):
    torch.sum(x, 0, out=out)
    return out * 2


def args():
    return (torch.arange(4.0).view(2, 2), torch.zeros(2, 2))
