# Functionalization: a write to windows with gaps sets the elements between them to zero
#
# `unfold_backward` builds the new base from zeros.
import torch


def f(x):
    y = x * 1
    y.unfold(0, 2, 3).mul_(2)
    return y


x = torch.ones(9)
print("expected", f(x))
print("seen", torch.compile(f, backend="aot_eager")(x))
