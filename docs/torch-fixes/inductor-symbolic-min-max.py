# Inductor: the gradient of `x[-3:]` with a dynamic size does not compile
#
# `evaluate_min` adds a guard, or raises, where it could return `Min(left, right)`.
import torch


def f(x):
    return x[-3:].sin()


compiled = torch.compile(f, dynamic=True)
for name, call in (("expected", f), ("seen", compiled)):
    x = torch.zeros(6, 2, requires_grad=True)
    call(x).sum().backward()
    print(name, x.grad)
