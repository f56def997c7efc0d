# torch.export: masked_select asserts too small a bound if the tensor is broadcast to the mask
#
# The fake kernel bounds the number of results by the elements of the tensor before broadcasting.
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return x.masked_select(y > 0)


args = torch.rand(6), torch.ones(4, 1)
exported = torch.export.export(Model(), args)
print("expected", Model()(*args).shape)
print("seen", exported.module()(*args).shape)
