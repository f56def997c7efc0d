# max_pool1d without gradients is a view of a larger result under torch.compile; eager's is not
#
# Eager has a kernel of its own for that. A trace takes `squeeze` of `max_pool2d_with_indices`.
import torch


def f(x):
    y = torch.nn.functional.max_pool1d(x, 2)
    return y, y[0]


x = torch.rand(2, 3, 8)
print("expected", [y._is_view() for y in f(x)])
print("seen", [y._is_view() for y in torch.compile(f, backend="aot_eager")(x)])
