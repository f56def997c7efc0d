# Inductor with `fallback_random`: a pattern with `randperm` moves the draw behind later ones
#
# `randperm_index_add_pattern` (misc_patterns.py) puts a new `randperm` where the index is used.
# Numbers drawn in between then differ from eager's.
import torch
import torch._inductor.config


def f(x, y):
    order = torch.randperm(x.shape[0])
    noise = torch.rand(3)
    index = order[: y.shape[0]]
    return x.index_add(0, index, y), index, noise


torch._inductor.config.fallback_random = True
for name, call in (("expected", f), ("seen", torch.compile(f))):
    torch.manual_seed(0)
    print(name, *call(torch.zeros(4, 8), torch.ones(2, 8))[1:])
