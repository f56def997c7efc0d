# Decomposition of multi_margin_loss: a gradient where a margin is just met, and one dimension more
import torch


def f(x, label):
    return torch.nn.functional.multi_margin_loss(x, label, reduction="none")


x, label = torch.tensor([2.0, 1.0, 3.0, 0.5]), torch.tensor(0)
print("expected", f(x, label).shape)
print("seen", torch.compile(f, backend="aot_eager_decomp_partition")(x, label).shape)
