# Decomposition of multilabel_margin_loss: labels after the first -1 count; one example has a dimension
#
# Eager stops at the first -1. With padded labels the compiled loss is too large, up to torch 2.13.
# With `reduction="none"` the loss of one example has no dimension in eager, and one here.
import torch


def f(x, labels):
    loss = torch.nn.functional.multilabel_margin_loss
    return loss(x, labels), loss(x[0], labels[0], reduction="none")


args = torch.linspace(-1, 1, 8).view(2, 4), torch.tensor([[2, 0, -1, 1], [3, -1, -1, -1]])
print("expected", f(*args))
print("seen", torch.compile(f, backend="aot_eager_decomp_partition")(*args))
