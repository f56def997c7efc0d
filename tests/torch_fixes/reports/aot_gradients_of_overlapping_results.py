# AOTAutograd: the gradient of a result whose elements share memory loses values
#
# It is copied to the strides of the result, where several of its values have one address.
import torch


def f(x):
    return x.sin().unfold(0, 2, 1)


for name, call in (("expected", f), ("seen", torch.compile(f, backend="aot_eager"))):
    x = torch.zeros(5, requires_grad=True)
    call(x).backward(torch.arange(1.0, 9.0).view(4, 2))
    print(name, x.grad)
