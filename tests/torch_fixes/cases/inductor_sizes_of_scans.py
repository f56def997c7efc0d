# target: cpu
# method: train
# dynamic: 0 1
import torch

torch.manual_seed(0)
f = torch.nn.GRU(3, 4)


def args():
    return (torch.linspace(-1, 1, 30).view(5, 2, 3),)


def other():
    return (torch.linspace(-1, 1, 63).view(7, 3, 3),)
