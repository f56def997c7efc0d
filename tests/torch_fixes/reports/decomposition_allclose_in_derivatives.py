# AOTAutograd: the gradient of complex singular vectors cannot be traced
#
# `svd_backward` calls `allclose` to check that the loss does not depend on the phase.
import torch
from functorch.compile import aot_function, nop


def f(x):
    return torch.linalg.svd(x)[0].abs()


for name, call in (("expected", f), ("seen", aot_function(f, nop, nop))):
    torch.manual_seed(0)
    x = torch.randn(2, 2, dtype=torch.complex128, requires_grad=True)
    call(x).sum().backward()
    print(name, x.grad)
