# front_ends: export
import torch


@torch.compiler.nested_compile_region
def doubled(x):
    return x * 2


@torch.compiler.nested_compile_region
def squared(x):
    return x * x


def f(x):
    return doubled(x) + squared(x)


def args():
    return (torch.tensor([1.0, 2.0, 3.0]),)
