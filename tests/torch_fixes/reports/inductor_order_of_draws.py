# Inductor with `fallback_random`: operators that draw are dropped where nobody uses their result
#
# The numbers that are drawn afterwards differ from eager's. torch 2.13 keeps `rand`, and
# drops `bernoulli`.
import torch
import torch._inductor.config


def f(x):
    torch.bernoulli(x, 0.4)
    first = torch.empty_like(x).bernoulli_(0.3)
    second = torch.rand(4)
    return torch.rand(4) * second, first


torch._inductor.config.fallback_random = True
for name, call in (("expected", f), ("seen", torch.compile(f))):
    torch.manual_seed(0)
    print(name, call(torch.zeros(4)))
