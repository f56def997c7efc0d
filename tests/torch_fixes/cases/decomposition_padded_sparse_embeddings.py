# method: train
import torch


def f(i, table):
    rows = torch.nn.functional.embedding(i, table, padding_idx=1, sparse=True)
    return rows * torch.nn.functional.embedding(i + 1, table, padding_idx=1, sparse=True)


def args():
    torch.manual_seed(0)
    return (torch.tensor([0, 1, 2, 1]), torch.randn(4, 2, requires_grad=True))
