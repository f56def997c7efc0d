# Functionalization: `as_strided` of a slice that was written to reads other elements
#
# A write makes the slice contiguous in the graph, whatever its strides were.
import torch


def f(x):
    x.add_(1)
    return x.as_strided((3,), (2,)) * 2


print("expected", f(torch.arange(10.0)[::2]))
print("seen", torch.compile(f, backend="aot_eager")(torch.arange(10.0)[::2]))
