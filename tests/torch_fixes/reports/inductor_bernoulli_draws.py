# Inductor: `bernoulli` draws other numbers than eager, even with `fallback_random`
#
# `aten.bernoulli.default` has a decomposition, which compares with `rand_like`.
import torch
import torch._inductor.config


def f(x):
    return torch.bernoulli(x)


torch._inductor.config.fallback_random = True
for name, call in (("expected", f), ("seen", torch.compile(f))):
    torch.manual_seed(0)
    print(name, call(torch.full((12,), 0.5, dtype=torch.float64)))
