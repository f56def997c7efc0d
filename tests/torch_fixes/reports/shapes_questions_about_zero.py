# torch.export: a comparison of a dynamic size with 0 is answered without a guard
#
# Symbols of sizes count as positive, though the size may be 0. `x.shape[0] > 0` is taken as true.
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum() + (1 if x.shape[0] > 0 else 2)


exported = torch.export.export(Model(), (torch.ones(3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
empty = torch.ones(0)
print("expected", Model()(empty))
print("seen", exported.module()(empty))
