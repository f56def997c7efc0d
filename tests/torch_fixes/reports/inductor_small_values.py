# Vectors of `expm1` and `atanh` lose small values, and `acosh` of large ones is infinite
#
# `CppVecOverrides.expm1` is `exp(x) - 1` (until 2.13), and `atanh` is `log((1 + x) / (1 - x)) / 2`. `Vectorized<float>::acosh`
# squares.
import torch


def f(x):
    return torch.atanh(x), torch.acosh(1 / x)


x = torch.full((64,), 1e-20)
print("expected", [float(y[0]) for y in f(x)])
print("seen", [float(y[0]) for y in torch.compile(f)(x)])
