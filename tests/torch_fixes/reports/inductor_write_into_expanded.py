# Inductor: a write into an expanded tensor changes all elements that share its memory
#
# `reinplace_inplaceable_ops` writes into the tensor itself, because nothing else reads it.
#
# Torch 2.14 (pytorch#184488) copies expanded tensors, and still writes into windows that overlap.
import torch


def f(x, index, y):
    windows = (x * 3).unfold(0, 3, 1)
    return (x * 2).expand(4, -1).index_add(0, index, y), windows.index_put((index,), y[:, :3].cos())


args = torch.ones(5), torch.tensor([0, 2]), torch.zeros(2, 5) + torch.tensor([[1.0], [2.0]])
print("expected", f(*args))
print("seen", torch.compile(f)(*args))
