# torch.compile: `unsafe_split` into one part returns the argument itself; eager gives a new tensor
#
# It is decomposed into `split`, and a slice of the whole is dropped. With gradients the result is a
# view of the argument, and eager's is none.
import torch


def f(x):
    return x.unsafe_split(9)[0]


x = torch.rand(4, 3)
print("expected", f(x) is x)
print("seen", torch.compile(f)(x) is x)
