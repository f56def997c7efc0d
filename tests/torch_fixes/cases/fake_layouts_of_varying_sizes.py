# method: train
# dynamic: 0
import torch
import torch.nn.functional as F


def f(x):
    return F.pad(x.sin(), (1, 1, 2, 2), mode="replicate").as_strided((5,), (2,)) * 2


def args():
    return (torch.rand(2, 4, 6, 6, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_(),)
