# Inductor: the diagonal of a matrix with two unbacked sizes does not compile
#
# `evaluate_min` raises where it is not known which size is smaller, though it could return
# `Min(left, right)`. Before, it takes a divisor for the smaller one, which a size of 0 is not.
import torch


def f(x):
    return x.diagonal().sin()


x = torch.ones(3, 4)
print("expected", f(x))
torch._dynamo.decorators.mark_unbacked(x, 0)
torch._dynamo.decorators.mark_unbacked(x, 1)
print("seen", torch.compile(f, fullgraph=True)(x))
