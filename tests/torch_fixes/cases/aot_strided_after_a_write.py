# refused: yes
import torch


def f(x):
    y = (x * 1)[::2]
    y.add_(1)
    return y.as_strided((3,), (1,)) * 2


def args():
    return (torch.arange(8.0),)
