# Inductor: `argmax` of a channels-last tensor returns the index in the order of the loops
import torch


def f(x):
    return x.mean(-1).argmax()


torch.manual_seed(0)
x = torch.randn(1, 8, 18, 18).to(memory_format=torch.channels_last)
print("expected", f(x))
print("seen", torch.compile(f)(x))
