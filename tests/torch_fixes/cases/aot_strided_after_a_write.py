# refused: yes
import torch


def f(x):
    x.add_(1)
    return x.as_strided((3,), (2,)) * 2


def args():
    return (torch.arange(10.0)[::2],)
