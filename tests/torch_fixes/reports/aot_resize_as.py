# AOTAutograd: resize_as_ of an argument is lost
#
# Functionalization treats `resize_as_` as a write of values. Only `resize_` has a rule of its own,
# which changes the sizes of the argument.
import torch
from functorch.compile import aot_function, nop


def f(x, y):
    x.resize_as_(y)
    return x * 2


def sizes(f):
    x = torch.rand(2, 3)
    f(x, torch.rand(4))
    return x.shape


print("expected", sizes(f))
print("seen", sizes(aot_function(f, nop)))
