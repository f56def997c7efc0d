# target: cpu
import torch


def f(x):
    return (
        torch.full((5,), 1.0001).half() * x,
        torch.full((5,), 0.1).double() * x,
        torch.full((5,), 16777217).float().long() * x.long(),
        torch.arange(5).bool().long() * x.long(),
        torch.arange(300).to(torch.int8).long() + x.sum().long(),
    )


def args():
    return (torch.linspace(1, 2, 5),)
