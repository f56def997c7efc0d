# Functionalization: a tensor written in place gets the strides of the out-of-place operator
#
# `z` is transposed. `index_add` returns a contiguous tensor, so `as_strided` reads other elements.
import torch


def f(x, y):
    z = x.t() * 1
    z.index_add_(0, torch.tensor([0, 2]), y)
    return z.as_strided((5,), (2,)) * 2


args = torch.arange(24.0).view(4, 6), torch.zeros(2, 4)
print("expected", f(*args))
print("seen", torch.compile(f, backend="aot_eager")(*args))
