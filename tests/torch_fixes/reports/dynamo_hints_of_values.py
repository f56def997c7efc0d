# Dynamo's capture for export: the value of a 0-dimensional example decides, without a guard
#
# An integer read off such a tensor has a hint, so `if` does not raise as for data-dependent values.
import torch
from torch._dynamo.functional_export import dynamo_graph_capture_for_export


class Model(torch.nn.Module):
    def forward(self, x, count):
        return x * 10 if count.item() > 2 else x


x = torch.ones(3)
torch._dynamo.config.capture_scalar_outputs = True
captured = dynamo_graph_capture_for_export(Model())(x, torch.tensor(3))
print("expected", Model()(x, torch.tensor(1)))
print("seen", captured(x, torch.tensor(1)))
