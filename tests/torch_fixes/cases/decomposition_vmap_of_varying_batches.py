# method: train
# dynamic: 0
import torch
import torch.nn.functional as F
from torch.func import grad, vmap


def f(x, w):
    rows = vmap(lambda row: F.layer_norm(row, (4,), w).gather(0, (row > 0).long()))(x)
    images = vmap(lambda row: F.conv1d(row[None, None], w[None, None, :2]).max(-1).values)(x)
    solved = vmap(lambda row: torch.linalg.solve(torch.eye(4, dtype=row.dtype) + 0.1 * torch.outer(row, w), row))(x)
    added = vmap(lambda row: w.index_add(0, (row > 0).long(), row))(x)
    losses = vmap(lambda row: F.cross_entropy(row * w, torch.tensor(1)))(x)
    gradients = vmap(grad(lambda row: row[1:].square().sum()))(x)
    return rows, images, solved, added, losses, gradients


def args():
    return torch.rand(4, 4, dtype=torch.float64).requires_grad_(), torch.rand(4, dtype=torch.float64).requires_grad_()


def other():
    return torch.rand(5, 4, dtype=torch.float64).requires_grad_(), torch.rand(4, dtype=torch.float64).requires_grad_()
