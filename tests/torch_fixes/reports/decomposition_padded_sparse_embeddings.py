# AOTAutograd: sparse gradients of embeddings with a `padding_idx` cannot be traced
#
# `embedding_sparse_backward` selects the rows that are no padding, with a mask.
import torch
from functorch.compile import aot_function, nop


def f(i, table):
    return torch.nn.functional.embedding(i, table, padding_idx=1, sparse=True)


for name, call in (("expected", f), ("seen", aot_function(f, nop, nop))):
    table = torch.zeros(3, 2, requires_grad=True)
    call(torch.tensor([0, 1, 2]), table).sum().backward()
    print(name, table.grad.to_dense())
