# Inductor: a value is computed before the write that it reads, after its loops were fused
#
# `recompute_size_and_body` reads the dependencies from the loop's body again, with the names of
# buffers before writes. `z + w` then no longer waits for the write into `z`.
import torch


def f(x, y, w, index, big):
    earlier = (y.t() + w) @ x
    z = x @ x.t()
    z.index_put_((index,), (big @ big)[:2, :6])
    return earlier, z + w


args = torch.ones(6, 8), torch.ones(6, 6), torch.zeros(6, 6), torch.tensor([0, 2]), torch.ones(64, 64)
print("expected", f(*args)[1][:, 0])
print("seen", torch.compile(f)(*args)[1][:, 0])
