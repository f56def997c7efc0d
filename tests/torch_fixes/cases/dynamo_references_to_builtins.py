# front_ends: dynamo
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree


@dataclass
class Output(OrderedDict):
    """A result with names, as those of transformers are."""

    y: torch.Tensor

    def __post_init__(self):
        self["y"] = self.y


pytree.register_pytree_node(Output, lambda output: ([output.y], None), lambda values, context: Output(*values))


def f(x):
    return Output(y=x * 2)


def args():
    return (torch.rand(3),)
