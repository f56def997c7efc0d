# Dynamo's capture for export: attributes of the model replace those of the captured graph module
import torch
from torch._dynamo.functional_export import dynamo_graph_capture_for_export


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._graph = {"depth": 2}

    def forward(self, x):
        return x * 2


print("expected", Model()(torch.ones(3)))
print("seen", dynamo_graph_capture_for_export(Model())(torch.ones(3))(torch.ones(3)))
