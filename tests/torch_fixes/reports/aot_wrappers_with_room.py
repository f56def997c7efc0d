# AOTAutograd: `as_strided_` cannot move an argument within its storage
#
# The wrapper that is traced has a storage of the size of the tensor, not of the real storage.
import torch
from functorch.compile import aot_function, nop


def f(x):
    x.as_strided_((2,), (1,), 3)
    return x * 2


print("expected", f(torch.arange(6.0)[:2]))
print("seen", aot_function(f, nop, nop)(torch.arange(6.0)[:2]))
