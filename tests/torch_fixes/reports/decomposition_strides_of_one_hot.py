# Decomposition of one_hot: the strides are those of the classes; eager's are contiguous
import torch


def f(x):
    return torch.nn.functional.one_hot(x.t(), 5)


x = torch.tensor([[0, 1, 2], [3, 4, 0]])
print("expected", f(x).stride())
print("seen", torch.compile(f, backend="aot_eager")(x).stride())
