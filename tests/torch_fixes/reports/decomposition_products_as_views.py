# Decomposition of matmul: the product of batches is a view; eager's result is not
#
# The C++ operator ends in `_unsafe_view`, the decomposition in `view`.
import torch


def f(x):
    y = x @ x
    return y, y[0]


x = torch.rand(2, 4, 4)
print("expected", [y._is_view() for y in f(x)])
print("seen", [y._is_view() for y in torch.compile(f, backend="aot_eager")(x)])
