# target: cpu
import torch


def f(x, y):
    of_rows = x[:9].to(torch.int8)[:, None] * x.view(9, 8)
    return (x * 100).to(torch.int8), y.to(torch.int8), (x.double() * 100).to(torch.int8), of_rows


def args():
    x = torch.tensor([2.0, -2.0, 1.3, -400.5, float("nan"), float("inf"), -float("inf"), 0.5]).repeat(9)
    return x, torch.arange(130.0, 230.0).bfloat16()
