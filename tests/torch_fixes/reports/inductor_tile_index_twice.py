# Inductor: the gradient of `x[..., [i], :]` beside a transposed use writes beyond a tensor
#
# `CppTile2DKernel.transform_indexing` adds the position in the tile to an index that has it already.
import torch


def f(x, w, v):
    key = x[..., [-2], :].squeeze(2)
    return (key.transpose(1, 2) * w).sum() + (key.sin() * v).sum()


for name, call in (("expected", f), ("seen", torch.compile(f))):
    torch.manual_seed(0)
    x = torch.randn(2, 24, 6, 32, requires_grad=True)
    call(x, torch.randn(2, 32, 24), torch.randn(2, 24, 32)).backward()
    print(name, x.grad.abs().sum((0, 1, 3)))
