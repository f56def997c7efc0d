# Decomposition of multilabel_margin_loss: labels after the first -1 count
#
# Eager stops at the first -1. With padded labels the compiled loss is too large.
import torch


def f(x, labels):
    return torch.nn.functional.multilabel_margin_loss(x, labels)


args = torch.linspace(-1, 1, 8).view(2, 4), torch.tensor([[2, 0, -1, 1], [3, -1, -1, -1]])
print("expected", f(*args))
print("seen", torch.compile(f, backend="aot_eager_decomp_partition")(*args))
