# Inductor: a write to a part of a complex tensor comes after reads of that tensor
#
# Inductor calls ATen's kernels for complex tensors, and for their views too. `_decompose_scatter_mutating` writes
# `diagonal_scatter` as `copy_` into such a view. The scheduler does not know that this changes the viewed tensor. So
# `mm`, which reads the tensor, may be called before the write: gradients of a complex `qr` are wrong.
import torch


def f(a):
    return torch.linalg.qr(a)[0] @ torch.linalg.qr(a)[1]


for name, function in (("expected", f), ("seen", torch.compile(f))):
    a = torch.tensor([[1 + 2j, 3, 1j], [2, 1 - 1j, 4], [1j, 2, 3 + 1j]], dtype=torch.complex128, requires_grad=True)
    (function(a) * torch.arange(9.0).reshape(3, 3)).sum().real.backward()
    print(name, a.grad[0].tolist())
