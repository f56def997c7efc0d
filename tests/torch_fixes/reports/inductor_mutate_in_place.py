# Inductor: a value computed before a masked write reads what was written
#
# `mutate_to` rebinds the storage box. Views taken earlier but generated later read the new values.
import torch


def f(x):
    z = x @ x.t()
    y = z[:2] * 3
    z[z > 0] = 1
    return y, z


x = torch.eye(3) * 2
print("expected", f(x))
print("seen", torch.compile(f)(x))
