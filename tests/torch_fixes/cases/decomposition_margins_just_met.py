import torch
import torch.nn.functional as F


def f(x, label):
    return F.multi_margin_loss(x, label, reduction="none")


def args():
    return torch.tensor([2.0, 1.0, 3.0, 0.5]).requires_grad_(), torch.tensor(0)
