# rrelu under torch.compile has the strides of its argument; eager's are contiguous
import torch


def f(x):
    return torch.nn.functional.rrelu(x.t(), training=True)


x = torch.rand(2, 3)
print("expected", f(x).stride())
print("seen", torch.compile(f, backend="aot_eager")(x).stride())
