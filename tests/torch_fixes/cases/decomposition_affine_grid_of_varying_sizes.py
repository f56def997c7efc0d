# method: train
# dynamic: 0
import torch
import torch.nn.functional as F


def f(theta):
    images = F.affine_grid(theta, [theta.shape[0], 1, 3, 4], align_corners=False)
    volumes = F.affine_grid(F.pad(theta, (0, 1, 0, 1)), [theta.shape[0], 1, 2, 2, 3], align_corners=True)
    return images, volumes


def args():
    return (torch.rand(4, 2, 3, dtype=torch.float64).requires_grad_(),)


def other():
    return (torch.rand(5, 2, 3, dtype=torch.float64).requires_grad_(),)
