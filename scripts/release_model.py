"""The model that scripts/release builds with the wheels."""

import torch


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(4, 8),)
