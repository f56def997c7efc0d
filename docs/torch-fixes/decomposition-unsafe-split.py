# Decomposition of `unsafe_split`: one part is the argument itself; eager gives a new tensor
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.unsafe_split(9)[0]


x = torch.rand(4, 3)
exported = torch.export.export(Model(), (x,)).run_decompositions()
print("expected", Model()(x) is x)
print("seen", exported.module()(x) is x)
