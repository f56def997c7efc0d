# Inductor: `take` by an index without dimensions does not compile
#
# The decomposition reads the index as a number, which depends on data.
import torch


def f(x, index):
    return x.take(index)


args = torch.arange(48.0).view(6, 8), torch.tensor(3)
print("expected", f(*args))
print("seen", torch.compile(f, fullgraph=True)(*args))
