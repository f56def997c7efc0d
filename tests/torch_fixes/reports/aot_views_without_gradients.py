# AOTAutograd: a view made under no_grad counts as a result that gradients flow through
#
# It requires a gradient, because its base does, but has no `grad_fn`. The backward asks for its
# gradient all the same. torch 2.12 tells such results apart (pytorch#175673).
import torch
from functorch.compile import aot_function, nop


def f(x):
    y = x * 2
    with torch.no_grad():
        z = y[1:]
    return y.sum(), z


def gradient(f):
    x = torch.ones(3, requires_grad=True)
    f(x)[0].backward()
    return x.grad


print("expected", gradient(f))
print("seen", gradient(aot_function(f, nop)))
