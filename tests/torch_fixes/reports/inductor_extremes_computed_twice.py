# Inductor: no gradient of `amin` flows, because its argument is computed twice with other last bits
#
# It is computed once vectorized and once as a scalar. No element equals the minimum then.
import torch
import torch.nn.functional as F


def f(x, y):
    return F.gelu(x).amin(-1), torch.erf(x + y).amin(-1), torch.atan2(x, y).t().amin(0)


for name, call in (("expected", f), ("seen", torch.compile(f))):
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    x, y = torch.randn(2, 3, generator=one).requires_grad_(), torch.randn(2, 3, generator=other)
    torch.autograd.backward(call(x, y), [torch.ones(2)] * 3)
    print(name, x.grad)
