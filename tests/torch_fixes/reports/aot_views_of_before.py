# Functionalization: a write through a view whose base was transposed since has a wrong gradient
#
# The view is taken again from the changed base: `row` becomes a column.
import torch


def f(x):
    y = x * 1
    row = y[0]
    y.t_()
    row.mul_(2)
    return y


for name, call in (("expected", f), ("seen", torch.compile(f, backend="aot_eager"))):
    x = torch.ones(2, 2, requires_grad=True)
    call(x).backward(torch.ones(2, 2))
    print(name, x.grad)
