# target: cpu
import torch


@torch.library.custom_op("aotpack_fixes::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@transposed.register_fake
def _(x):
    return torch.empty_like(x)


def f(x):
    return (transposed(x) + x).sum(0)


def args():
    return (torch.rand(3, 4),)
