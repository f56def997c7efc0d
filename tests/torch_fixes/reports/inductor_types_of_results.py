# Inductor: `torch.bmm` of int8 is int64 if one side has one row or one column
#
# It is computed as a sum there, and the sum of integers is int64.
import torch


def f(a, b):
    return torch.bmm(a, b)


args = torch.ones(1, 1, 3, dtype=torch.int8), torch.ones(1, 3, 2, dtype=torch.int8)
print("expected", f(*args).dtype)
print("seen", torch.compile(f)(*args).dtype)
