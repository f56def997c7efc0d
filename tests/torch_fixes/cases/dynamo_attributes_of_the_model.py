# front_ends: dynamo
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._graph = {"depth": 2}

    def forward(self, x):
        return x * 2


f = Model()


def args():
    return (torch.rand(3),)
