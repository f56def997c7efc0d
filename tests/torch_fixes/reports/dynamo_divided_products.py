# Dynamo: `addcdiv` by a number is decomposed above autograd
#
# `addcdiv` becomes `div`, `mul` and `add`. In half precision each rounds. The gradient of the divisor is that of
# `div`, which divides twice, where `addcdiv` divides by the square.
import torch


def f(x, y):
    return torch.addcdiv(x, x, y, value=0.3)


x = torch.tensor([0.0, 3.0], dtype=torch.float16)
for name, call in (("expected", f), ("seen", torch.compile(f, backend="eager"))):
    y = torch.tensor([6e-8, 7.0], dtype=torch.float16, requires_grad=True)
    (gradient,) = torch.autograd.grad(call(x, y).sum(), y)
    print(name, gradient)
