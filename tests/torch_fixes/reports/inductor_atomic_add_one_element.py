# Inductor: `index_add` of a vector into a tensor of one element does not compile
#
# With several threads the loop adds atomically. `CppVecKernel.store` expects a vector of indices,
# and `index_expr` gives one number: the index is always 0. One thread adds without it.
import torch

torch.set_num_threads(2)


def f(x):
    return x.new_zeros(1).index_add(0, torch.zeros(17, dtype=torch.long), x)


x = torch.ones(17)
print("expected", f(x))
print("seen", torch.compile(f)(x))
