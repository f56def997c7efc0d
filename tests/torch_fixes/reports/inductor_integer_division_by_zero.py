# Inductor: a division of integers by zero ends the process
import torch


def f(x, y):
    return torch.div(x, y, rounding_mode="trunc")


args = torch.arange(9), torch.zeros(9, dtype=torch.int64)
try:
    f(*args)
except RuntimeError as error:
    print("expected", error)
try:
    torch.compile(f)(*args)
except RuntimeError as error:
    print("seen", error)
