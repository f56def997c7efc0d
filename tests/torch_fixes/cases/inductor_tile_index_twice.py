# target: cpu
# method: train
# threads: 8 8
# crashes: memory beyond a tensor is written
import torch

# More than four threads: fewer add plainly (``aotpack/_torch/inductor/codegen/scatter_add.py``), which has no second index.


def f(x, w, v):
    key = x[..., [-2], :].squeeze(2)
    return (key.transpose(1, 2) * w).sum() + (key.sin() * v).sum()


def args():
    torch.manual_seed(0)
    return torch.randn(2, 24, 6, 32, requires_grad=True), torch.randn(2, 32, 24), torch.randn(2, 24, 32)
