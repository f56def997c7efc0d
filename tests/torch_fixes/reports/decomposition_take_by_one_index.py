# Inductor: `take` by an index without dimensions does not compile, or is a view
#
# The decomposition is `x.reshape(-1)[index]`. Torch 2.13 needs the index as a number, which depends
# on data. Torch 2.14 (pytorch#186138) takes a view, and a later write to the result changes the
# argument.
import torch


def f(x, index):
    return x.take(index)


for name, call in (("expected", f), ("seen", torch.compile(f, fullgraph=True))):
    x = torch.zeros(6, 8)
    call(x, torch.tensor(3)).add_(1)
    print(name, x.sum())
