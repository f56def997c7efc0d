# `polygamma_` cannot be exported: it has no functional form
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return (x * 1).polygamma_(1)


x = torch.ones(3)
print("expected", Model()(x))
print("seen", torch.export.export(Model(), (x,)).run_decompositions().module()(x))
