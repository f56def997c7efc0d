# target: cpu
# method: train
# dynamic: 0 1
import torch
import torch.nn.functional as F
from torch import nn


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        parts = self.project(self.norm(x)).view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.out(attended.transpose(1, 2).reshape(x.shape))


torch.manual_seed(0)
f = Views()


def args():
    return (torch.rand(2, 6, 16),)


def other():
    return (torch.rand(1, 7, 16),)
