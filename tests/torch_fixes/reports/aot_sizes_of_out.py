# AOTAutograd: a tensor passed as `out=` is not resized, and the result is broadcast into it
import warnings

import torch
from functorch.compile import aot_function, nop

warnings.simplefilter("ignore")


def f(x, out):
    torch.sum(x, 0, out=out)
    return out * 2


x = torch.arange(4.0).view(2, 2)
for name, call in (("expected", f), ("seen", aot_function(f, nop, nop))):
    out = torch.zeros(2, 2)
    call(x, out)
    print(name, out)
