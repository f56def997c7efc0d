# Inductor: `ldexp` of half precision and float32 is computed and returned in half precision
#
# Eager multiplies by `torch.pow(2.0, n)`, in the type of both. Inductor keeps the type of a real
# first argument, and takes float32 for an integer beside half precision.
import torch

args = torch.full((1,), 1 / 3, dtype=torch.half), torch.ones(1)
print("expected", torch.ldexp(*args))
print("seen", torch.compile(torch.ldexp)(*args))
